package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
	"github.com/nodens-dns/nodens/internal/watch"
)

// hostResolvConf is the file with the host's nameservers and search list.
const hostResolvConf = "/etc/resolv.conf"

// searchList is the search list from which normalize takes its suffixes.
type searchList struct {
	path    string
	content watch.Sum // of the file, taken before it was read
	domains []string
}

// readSearch reads the host's search list. A file without a nameserver may have one.
// A missing file has an empty list.
func readSearch(path string) (searchList, error) {
	s := searchList{path: path, content: watch.SumOf([]string{path})}
	text, err := watch.ReadFile(path, watch.MaxResolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	_, s.domains, err = upstream.ParseResolvConf(bytes.NewReader(text))
	if errors.Is(err, upstream.ErrNoNameserver) {
		err = nil
	}
	return s, err
}

// normalise makes the block's normalize directive. With -localip, the block of the
// root zone has one by default.
func (b *builder) normalise(a *app, block *config.Block) (*server.Normalise, error) {
	n := block.Normalize
	if n == nil && normalisesByDefault(b.opts, block) {
		n = config.DefaultNormalize()
	}
	if n == nil || n.Mode == config.NormalizeOff {
		return nil, nil
	}
	suffixes := n.Suffixes
	if len(suffixes) == 0 {
		s, err := readSearch(b.resolvConf)
		if err != nil {
			// Not an error of the Corefile: serve without normalize.
			b.log.Warn("normalize has no search list", "error", err)
		}
		a.search, suffixes = &s, s.usable(b.log)
	}
	return server.NewNormalise(server.NormaliseConfig{
		Suffixes: suffixes, Except: append(slices.Clone(n.Except), otherZones(b.opts, a.cfg, block)...),
		Observe: n.Mode == config.NormalizeObserve, Bare: n.Bare, Repair: n.Repair,
		Timeout: n.Timeout, TTL: n.TTL,
	})
}

func normalisesByDefault(o *Options, b *config.Block) bool {
	isRoot := func(z config.Zone) bool { return z.Name == "." }
	return len(o.LocalIPs) > 0 && len(b.Forwards) > 0 && slices.ContainsFunc(b.Zones, isRoot)
}

// otherZones returns the cluster domain and the zones of other blocks, such as stub
// domains. normalize does not change names in them.
func otherZones(o *Options, cfg source, b *config.Block) []string {
	zones := []string{dns.Fqdn(o.ClusterDomain)}
	for _, other := range cfg.Blocks {
		if other == b {
			continue
		}
		for _, z := range other.Zones {
			zones = append(zones, z.Name)
		}
	}
	return withoutRoot(zones)
}

// usable returns the search domains that are domain names, without the root.
func (s searchList) usable(log *slog.Logger) []string {
	var domains []string
	for _, domain := range withoutRoot(s.domains) {
		if _, ok := dns.IsDomainName(domain); !ok {
			log.Warn("normalize ignores a search domain: it is not a domain name", "file", s.path, "zone", domain)
			continue
		}
		domains = append(domains, domain)
	}
	return domains
}

func withoutRoot(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "." })
}

// follow requests a reload when the search list may have changed, until ctx is
// done.
func (s *searchList) follow(ctx context.Context, reloads reloadRequests, log *slog.Logger) {
	const interval = time.Minute // for file systems that do not notify
	err := watch.Files(ctx, []string{s.path}, s.content, interval, func() { reloads.add(s.path + " changed") })
	if err != nil && ctx.Err() == nil {
		log.Error("changes of the search list are no longer detected", "file", s.path, "error", err)
	}
}
