package server

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Actions of RewriteEDNS0.
const (
	EDNS0Set     = "set"     // add the option or change the client's
	EDNS0Append  = "append"  // add the option unless the client has sent one
	EDNS0Replace = "replace" // change the client's
	EDNS0Unset   = "unset"   // take the client's away
)

// RewriteEDNS0 changes an option of the query to upstream (RFC 6891 §6.1.2).
// Of what the client has sent, upstream gets only the options that a rule names.
type RewriteEDNS0 struct {
	Action   string
	Code     uint16
	Data     []byte // of an option that is always the same
	Variable string // what the data is instead: "qname", "client_ip"…; empty: Data
	Subnet   *EDNS0Subnet
}

// EDNS0Subnet are the lengths in bits of what RFC 7871 tells of the client.
type EDNS0Subnet struct{ V4, V6 int }

func (w RewriteEDNS0) apply(r *rewriting) bool {
	at := slices.IndexFunc(r.options, func(o dns.EDNS0) bool { return o.Option() == w.Code })
	sent, has := r.q.option(w.Code), false
	if has = at >= 0 || sent != nil; at < 0 && has && w.Action != EDNS0Unset {
		r.options = append(r.options, &dns.EDNS0_LOCAL{Code: w.Code, Data: sent})
		at, r.private = len(r.options)-1, true
	}
	switch {
	case w.Action == EDNS0Unset:
		r.options = slices.DeleteFunc(r.options, func(o dns.EDNS0) bool { return o.Option() == w.Code })
		return true
	case w.Action == EDNS0Append && has:
		return true
	case w.Action == EDNS0Replace && !has:
		return false
	}
	data := w.data(r.q)
	if data == nil {
		return false
	}
	o := &dns.EDNS0_LOCAL{Code: w.Code, Data: data}
	r.private = r.private || w.Subnet != nil || w.Variable != ""
	if at < 0 {
		r.options = append(r.options, o)
	} else {
		r.options[at] = o
	}
	return true
}

// data is the option's data; nil if there is none for this client.
func (w RewriteEDNS0) data(q *Query) []byte {
	if w.Subnet != nil {
		return w.Subnet.data(q.client.Addr().Unmap())
	}
	local := q.zone.table.local
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	switch w.Variable {
	case "":
		return append([]byte{}, w.Data...)
	case "qname":
		return []byte(strings.ToLower(q.presentation()))
	case "qtype":
		return port(q.qtype)
	case "client_ip":
		return q.client.Addr().Unmap().AsSlice()
	case "client_port":
		return port(q.client.Port())
	case "server_ip":
		return local.Addr().Unmap().AsSlice()
	case "server_port":
		return port(local.Port())
	case "protocol":
		return []byte(protoLabels[boolIndex(q.tcp)])
	}
	return nil
}

// data is the option of RFC 7871 §6.
func (s *EDNS0Subnet) data(client netip.Addr) []byte {
	family, bits := uint16(1), s.V4
	if client.Is6() {
		family, bits = 2, s.V6
	}
	prefix, err := client.WithZone("").Prefix(bits)
	if err != nil {
		return nil
	}
	b := binary.BigEndian.AppendUint16(nil, family)
	b = append(b, byte(bits), 0)
	return append(b, prefix.Addr().AsSlice()[:(bits+7)/8]...)
}

// option is the data of the first option with that code that the client sent;
// nil if there is none.
func (q *Query) option(code uint16) []byte {
	for rest := q.options; len(rest) >= 4; {
		n := 4 + int(binary.BigEndian.Uint16(rest[2:]))
		if n > len(rest) {
			return nil
		}
		if binary.BigEndian.Uint16(rest) == code {
			return append([]byte{}, rest[4:n]...)
		}
		rest = rest[n:]
	}
	return nil
}
