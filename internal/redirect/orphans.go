package redirect

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/bpf"
)

// orphans returns the pinned targets if no daemon is alive. Sockets of pods may
// still be connected to them, for instance after the whole container was killed.
func orphans(pinned []bpf.Pinned) []netip.AddrPort {
	var targets []netip.AddrPort
	for _, p := range pinned {
		if p.Canary {
			return nil
		}
		for _, s := range p.Services {
			if len(p.Hooks) > 0 && !slices.Contains(targets, s.Target) {
				targets = append(targets, s.Target)
			}
		}
	}
	return targets
}

// closeOrphans closes sockets of pods that wait for an answer of a dead predecessor,
// so that the clients retry at once. Call it before this process is alive: the
// kernel sends the retries to the fallback.
func closeOrphans(log *slog.Logger, kubepods, pinDir string) {
	pinned, err := bpf.Inspect(pinDir)
	if err != nil {
		return // OpenRedirect reports it
	}
	for _, target := range orphans(pinned) {
		n, destroyErr := bpf.DestroyPodSockets(kubepods, "/proc", target)
		err = errors.Join(err, destroyErr)
		log.Info("closed sockets that waited for a predecessor: their lookups are retried", "target", target, "sockets", n)
	}
	if err != nil {
		log.Warn("lookups that wait for a predecessor may have to wait for their timeout", "error", err)
	}
}
