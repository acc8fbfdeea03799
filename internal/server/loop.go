package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/dnsname"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// LoopProbe detects forwarding loops: it sends a query for a random name to the
// zone's sources and watches for that query. A loop is logged and counted. It does
// not end the process, because other zones still work.
type LoopProbe struct {
	name  string // lower case, presentation form
	wire  []byte
	armed atomic.Bool
	found atomic.Bool
}

// NewLoopProbe makes the probe of one zone.
func NewLoopProbe(zone string) *LoopProbe {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	p := &LoopProbe{name: strings.ToLower(fmt.Sprintf("%d.%d.%s", hi, lo, strings.TrimPrefix(zone, ".")))}
	p.wire, _ = dnsname.Pack(p.name) // nil if the zone is too long
	return p
}

// returned reports whether q is the probe, and records that it came back.
func (p *LoopProbe) returned(q *Query) bool {
	if q.qtype != dns.TypeHINFO || !p.armed.Load() || string(q.lower) != string(p.wire) {
		return false
	}
	p.found.Store(true)
	return true
}

// Run sends the probe to the zone's sources and reports whether it came back. An
// upstream that does not answer is no loop.
func (p *LoopProbe) Run(ctx context.Context, z *Zone) bool {
	if p == nil || p.wire == nil {
		return false
	}
	p.found.Store(false)
	p.armed.Store(true)
	defer p.armed.Store(false)
	m := new(dns.Msg)
	m.SetQuestion(p.name, dns.TypeHINFO)
	for _, src := range z.Sources {
		if src.Client != nil {
			continue // answers clients only
		}
		if _, err := src.Exchange(ctx, m); !errors.Is(err, upstream.ErrNotMine) {
			break
		}
	}
	return p.found.Load()
}
