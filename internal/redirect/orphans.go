package redirect

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/bpf"
)

// orphans returns the pinned targets if no daemon is alive. Sockets of pods may
// still be connected to them, for instance after the whole container was killed.
// Another version's targets cannot be read; own are usually the same. frozen: a
// daemon exists, but is frozen.
func orphans(pinned []bpf.Pinned, own []bpf.Service) (targets []netip.AddrPort, frozen bool) {
	for _, p := range pinned {
		if p.Lives() {
			return nil, false
		}
		frozen = frozen || p.Canary
		services := p.Services
		if !p.Ours {
			services = own
		}
		for _, s := range services {
			if len(p.Hooks) > 0 && !slices.Contains(targets, s.Target) {
				targets = append(targets, s.Target)
			}
		}
	}
	return targets, frozen
}

// clientSockets closes pods' sockets, so that their lookups are retried.
type clientSockets struct {
	kubepods string // directory
	pinDir   string
	services []bpf.Service
	log      *slog.Logger
}

// free closes the sockets of pods that are connected to peer, so that their lookups are
// retried.
func (p *clientSockets) free(peer netip.AddrPort, reason string) {
	n, err := bpf.DestroyPodSockets(p.kubepods, "/proc", peer, bpf.UDP, bpf.TCP)
	if err != nil {
		p.log.Warn("closing sockets of pods failed: their lookups may wait for a timeout", "peer", peer, "error", err)
	}
	if err == nil || n > 0 {
		p.log.Info("closed sockets of pods: their lookups are retried", "peer", peer, "sockets", n, "reason", reason)
	}
}

// closeOrphans closes sockets of pods that wait for an answer of a dead or frozen
// predecessor. Call it before this process is alive: the kernel sends the retries to
// the fallback.
func (p *clientSockets) closeOrphans() {
	pinned, err := bpf.Inspect(p.pinDir)
	if err != nil {
		return // OpenRedirect reports it
	}
	targets, _ := orphans(pinned, p.services)
	for _, target := range targets {
		p.free(target, "the predecessor does not answer")
	}
}

// replaceFrozen takes the place of a predecessor that is frozen, and reports whether
// there is one.
func (p *clientSockets) replaceFrozen(takePorts func()) bool {
	pinned, err := bpf.Inspect(p.pinDir)
	targets, frozen := orphans(pinned, p.services)
	if err != nil || !frozen {
		return false
	}
	takePorts()
	for _, target := range targets {
		p.free(target, "the predecessor is frozen")
	}
	return true
}

// closeEscaped closes sockets that were connected to a redirected address while no
// program was attached, so that the retries are redirected. dead: a process that
// redirected is dead or frozen. Then it also closes those that wait for its answer.
func (p *clientSockets) closeEscaped(dead bool) {
	for _, svc := range p.services {
		p.free(svc.VIP, "redirection was incomplete")
		if dead {
			p.free(svc.Target, "the process that redirected does not answer")
		}
	}
}

// takePorts takes the ports that a frozen process holds.
func (s *session) takePorts() {
	if err := s.cfg.TakePorts(); err != nil {
		s.status.error("a frozen nodens holds the ports and gets a share of the lookups; end it", "error", err)
		return
	}
	s.cfg.Logger.Warn("a frozen nodens still holds the ports: it gets no more lookups; end it")
}
