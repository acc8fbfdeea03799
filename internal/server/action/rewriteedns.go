package action

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// Actions of RewriteEDNS0.
const (
	EDNS0Set     = "set"     // add the option or change the client's
	EDNS0Append  = "append"  // add the option unless the client has sent one
	EDNS0Replace = "replace" // change the client's
	EDNS0Unset   = "unset"   // remove the client's
)

// RewriteEDNS0 changes an option of the query to upstream (RFC 6891 §6.1.2).
// Upstream gets only those of the client's options that a rule names.
type RewriteEDNS0 struct {
	Action   string
	Code     uint16
	Data     []byte // of an option with fixed data
	Variable string // a value instead of Data: "qname", "client_ip"…; empty: Data
	Subnet   *EDNS0Subnet
}

// EDNS0Subnet is how many bits of the client's address upstream gets (RFC 7871).
type EDNS0Subnet struct{ V4, V6 int }

func (w RewriteEDNS0) apply(r *Rewriting) bool {
	at := slices.IndexFunc(r.Options, func(o dns.EDNS0) bool { return o.Option() == w.Code })
	sent, has := Option(r.client.Options, w.Code), false
	if has = at >= 0 || sent != nil; at < 0 && has && w.Action != EDNS0Unset {
		r.Options = append(r.Options, &dns.EDNS0_LOCAL{Code: w.Code, Data: sent})
		at, r.Private = len(r.Options)-1, true
	}
	switch {
	case w.Action == EDNS0Unset:
		r.Options = slices.DeleteFunc(r.Options, func(o dns.EDNS0) bool { return o.Option() == w.Code })
		return true
	case w.Action == EDNS0Append && has:
		return true
	case w.Action == EDNS0Replace && !has:
		return false
	}
	data := w.data(&r.client)
	if data == nil {
		return false
	}
	o := &dns.EDNS0_LOCAL{Code: w.Code, Data: data}
	r.Private = r.Private || w.Subnet != nil || w.Variable != ""
	if at < 0 {
		r.Options = append(r.Options, o)
	} else {
		r.Options[at] = o
	}
	return true
}

// data is the option's data. It is nil if there is none for this client.
func (w RewriteEDNS0) data(q *Question) []byte {
	if w.Subnet != nil {
		return w.Subnet.data(q.Client.Addr().Unmap())
	}
	number := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	switch w.Variable {
	case "":
		return append([]byte{}, w.Data...)
	case "qname":
		return []byte(q.Name)
	case "qtype":
		return number(q.Type)
	case "client_ip":
		return q.Client.Addr().Unmap().AsSlice()
	case "client_port":
		return number(q.Client.Port())
	case "server_ip":
		return q.Server.Addr().Unmap().AsSlice()
	case "server_port":
		return number(q.Server.Port())
	case "protocol":
		return []byte(protocol(q.TCP))
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

// Option returns the data of the first option with that code in the data of an
// OPT record. It returns nil if there is none.
func Option(options []byte, code uint16) []byte {
	for rest := options; len(rest) >= 4; {
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
