package server

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

// inquiry is a question to the sources of a zone. It does not point into the
// Query that it was made of.
type inquiry struct {
	zone   *boundZone
	key    []byte // of the cache
	m      *dns.Msg
	client netip.AddrPort
	tcp    bool
	depth  int // of CNAMEs followed to get here
}

// sourced is what a source says.
type sourced struct {
	*dns.Msg
	plugin  int  // index into pluginLabels
	private bool // for this client only, or for now only: not to be kept
	note    ede
}

// clientSource is a source of the package's own, which may look at who asks and
// look up other names.
type clientSource interface {
	Source
	exchangeFor(ctx context.Context, s *Server, in *inquiry) (sourced, error)
	// perClient reports whether different clients may get different answers.
	perClient() bool
}

func (q *Query) inquiry() *inquiry {
	return &inquiry{
		zone: q.zone, key: append([]byte(nil), q.key...), m: q.message(), client: q.client, tcp: q.tcp,
	}
}

// flightKey tells apart what may be answered differently: zones, questions,
// options for upstream and, where a source looks at them, clients.
func (in *inquiry) flightKey() []byte {
	key := binary.BigEndian.AppendUint32(nil, in.zone.serial)
	key = append(key, in.key...)
	if opt := in.m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok {
				key = binary.BigEndian.AppendUint16(key, local.Code)
				key = binary.BigEndian.AppendUint16(key, uint16(len(local.Data)))
				key = append(key, local.Data...)
			}
		}
	}
	if in.zone.perClient() {
		client, _ := in.client.MarshalBinary() // never fails
		key = append(append(key, client...), byte(boolIndex(in.tcp)))
	}
	return key
}

// perClient reports whether a source of the zone looks at who asks.
func (z *Zone) perClient() bool {
	for _, src := range z.Sources {
		if c, ok := src.Source.(clientSource); ok && c.perClient() {
			return true
		}
	}
	return false
}
