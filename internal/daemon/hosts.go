package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
	"github.com/nodens-dns/nodens/internal/watch"
)

// hostsFile is a hosts directive and the file that it follows.
type hostsFile struct {
	hosts    *upstream.Hosts
	path     string
	content  watch.Sum     // of the file, taken before it was read
	interval time.Duration // 0: the file is read once
}

func newHostsFile(b *config.Block, log *slog.Logger) (*hostsFile, error) {
	h := b.Hosts
	read := watch.SumOf([]string{h.Path})
	inline := make([]upstream.HostsEntry, len(h.Inline))
	for i, e := range h.Inline {
		inline[i] = upstream.HostsEntry(e)
	}
	hosts, err := upstream.NewHosts(upstream.HostsConfig{
		Path: h.Path, Zones: zonesOr(h.Zones, b), Inline: inline, TTL: h.TTL,
		NoReverse: h.NoReverse, Fallthrough: h.Fallthrough,
		FallthroughUnsupported: h.FallthroughUnsupported, Logger: log,
		ReadFile: func(path string) ([]byte, error) { return watch.ReadFile(path, watch.MaxHosts) },
	})
	return &hostsFile{hosts: hosts, path: h.Path, content: read, interval: h.Reload}, err
}

// follow reads the file again when it changes, until ctx is done.
func (h *hostsFile) follow(ctx context.Context, log *slog.Logger) {
	err := watch.Files(ctx, []string{h.path}, h.content, h.interval, func() {
		if err := h.hosts.Reload(); err != nil {
			log.Error("the hosts stay as they were: reading the file failed", "file", h.path, "error", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		log.Error("changes of the hosts file are no longer detected", "file", h.path, "error", err)
	}
}
