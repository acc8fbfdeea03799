package redirect

import (
	"math/rand/v2"
	"net/netip"
)

const (
	// usedRounds is the number of rounds in which each fallback that the kernel has is
	// asked over UDP, if there are no spare ones.
	usedRounds = 4
	// minPerRound is the least number of fallbacks in a round, if there are as many.
	minPerRound = 2
	// Each spareRounds-th round also asks a spare one, instead of one of the kernel's.
	spareRounds = 3
	// tcpRounds is the number of rounds after which one also uses TCP: a minute.
	tcpRounds = 6
)

// rounds chooses the fallbacks to ask in each round.
type rounds struct {
	round            int
	used, spare, tcp turn
}

// newRounds starts at random fallbacks, because all nodes have the same ones.
func newRounds() *rounds {
	return &rounds{used: turn(rand.Int()), spare: turn(rand.Int()), tcp: turn(rand.Int())}
}

// next returns those to ask over UDP and over TCP. used are those that the kernel has:
// if one of them is dead, lookups wait.
func (r *rounds) next(used, spare []netip.AddrPort) (udp, tcp []netip.AddrPort) {
	r.round++
	n := max(minPerRound, (len(used)+usedRounds-1)/usedRounds)
	spares := 0
	if r.round%spareRounds == 0 {
		spares = min(1, len(spare))
	}
	udp = r.used.next(used, n-spares)
	udp = append(udp, r.spare.next(spare, n-len(udp))...)
	if r.round%tcpRounds == 0 {
		tcp = r.tcp.next(used, n)
	}
	return udp, tcp
}

// turn is the index of the fallback to ask next, modulo their number.
type turn uint

// next returns n of all, or all if there are fewer.
func (t *turn) next(all []netip.AddrPort, n int) (some []netip.AddrPort) {
	for range min(n, len(all)) {
		at := *t % turn(len(all))
		some = append(some, all[at])
		*t = at + 1
	}
	return some
}
