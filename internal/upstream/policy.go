package upstream

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
)

// Policy is how a Pool orders its servers for an exchange.
type Policy string

// The policies of forward. The empty Policy is PolicyRandom.
const (
	PolicyRandom     Policy = "random"
	PolicyRoundRobin Policy = "round_robin"
	PolicySequential Policy = "sequential"
)

// order returns the function that orders servers, into a new slice.
func (p Policy) order() (func([]*server) []*server, error) {
	switch p {
	case PolicyRandom, "":
		return shuffled, nil
	case PolicyRoundRobin:
		var turn atomic.Uint32
		return func(in []*server) []*server { return rotated(in, turn.Add(1)-1) }, nil
	case PolicySequential:
		return func(in []*server) []*server { return rotated(in, 0) }, nil
	}
	return nil, fmt.Errorf("policy %q: not one of random, round_robin, sequential", string(p))
}

func shuffled(in []*server) []*server {
	out := append([]*server(nil), in...)
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func rotated(in []*server, by uint32) []*server {
	if len(in) == 0 {
		return nil
	}
	k := int(by % uint32(len(in)))
	return append(append(make([]*server, 0, len(in)), in[k:]...), in[:k]...)
}

// plan returns the servers in the order of the policy, those that seem dead
// apart. If all seem dead the check is taken for broken and all are alive.
func (p *Pool) plan() (alive, dead []*server) {
	for _, s := range p.order(*p.servers.Load()) {
		if s.down() {
			dead = append(dead, s)
		} else {
			alive = append(alive, s)
		}
	}
	if len(alive) == 0 && len(dead) > 0 {
		p.cfg.Metrics.healthBroken.Inc()
		return dead, nil
	}
	return alive, dead
}
