package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/bpf"
)

// orphans is what sockets of pods are connected to of a predecessor that has gone
// and left nobody to free them, as when a container is killed as a whole: the
// targets that are pinned while nobody is alive.
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

// freeOrphans lets those who wait for a predecessor's answer ask again, at once. It
// is called before we are alive: the kernel sends them to the fallback. The caller
// holds mu.
func (r *redirector) freeOrphans() {
	pinned, err := bpf.Inspect(r.plan.pinDir)
	if err != nil {
		return // OpenRedirect tells
	}
	for _, target := range orphans(pinned) {
		n, destroyErr := bpf.DestroyPodSockets(r.kubepods, "/proc", target)
		err = errors.Join(err, destroyErr)
		r.log.Info("look-ups that waited for a predecessor ask again", "target", target, "sockets", n)
	}
	if err != nil {
		r.log.Warn("look-ups that wait for a predecessor may have to wait for their timeout", "error", err)
	}
}
