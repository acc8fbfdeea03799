package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// staticTTL is the TTL, in seconds, of the records that a Static synthesises: the
// SOA, and so denials, and the addresses of pods.
const staticTTL = 30

// Static answers from fixed records, as CoreDNS's kubernetes plugin does for a
// cluster with these Services and pods. It is immutable.
type Static struct {
	origins []string
	nodes   map[string]map[uint16][]dns.RR // by canonical owner; no records: an empty non-terminal
}

// NewStatic makes a Static of the records of zone, which it keeps, for the zones
// origins.
func NewStatic(zone []dns.RR, origins []string) (*Static, error) {
	if len(origins) == 0 {
		return nil, errors.New("static zone: no origin")
	}
	s := &Static{nodes: make(map[string]map[uint16][]dns.RR)}
	for _, o := range origins {
		if _, ok := dns.IsDomainName(o); !ok || o == "" {
			return nil, fmt.Errorf("static zone: origin %q is not a domain name", o)
		}
		o = dns.CanonicalName(o)
		s.origins = append(s.origins, o)
		s.node(o)
	}
	// The longest first, so that the first match is the closest.
	slices.SortStableFunc(s.origins, func(a, b string) int { return dns.CountLabel(b) - dns.CountLabel(a) })
	for _, rr := range zone {
		if err := s.add(rr); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Origins returns the zones, fully qualified and in lower case.
func (s *Static) Origins() []string { return slices.Clone(s.origins) }

func (s *Static) node(name string) map[uint16][]dns.RR {
	if s.nodes[name] == nil {
		s.nodes[name] = make(map[uint16][]dns.RR)
	}
	return s.nodes[name]
}

// add adds rr and the empty non-terminals above it.
func (s *Static) add(rr dns.RR) error {
	if rr == nil {
		return errors.New("static zone: nil record")
	}
	h := rr.Header()
	owner := dns.CanonicalName(h.Name)
	origin := s.origin(owner)
	if origin == "" {
		return fmt.Errorf("static zone: %s is outside of %v", h.Name, s.origins)
	}
	n := s.node(owner)
	n[h.Rrtype] = append(n[h.Rrtype], rr)
	for up := owner; up != origin; {
		i, end := dns.NextLabel(up, 0)
		if end {
			break
		}
		up = up[i:]
		s.node(up)
	}
	return nil
}

// origin returns the closest zone that a canonical name is in, or "".
func (s *Static) origin(name string) string {
	for _, o := range s.origins {
		if dns.IsSubDomain(o, name) {
			return o
		}
	}
	return ""
}

// Exchange answers q with AA set; names outside the zones are ErrNotMine.
func (s *Static) Exchange(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
	q, err := newQuestion(m)
	if err != nil {
		return nil, &Error{EDE: edeOther, Err: err}
	}
	name := dns.CanonicalName(q.Name)
	origin := s.origin(name)
	if origin == "" || q.Qclass != dns.ClassINET {
		return nil, ErrNotMine
	}
	node, exists := s.nodes[name]
	pod, isPod := s.podAddr(name, origin)
	reply := q.reply(s.records(q, node))
	switch {
	case len(reply.Answer) > 0:
		reply.Extra = s.additional(reply.Answer)
		return reply, nil
	case isPod && podType(pod) == q.Qtype:
		reply.Answer = []dns.RR{podRecord(q.Name, pod)}
		return reply, nil
	case name == origin && q.Qtype == dns.TypeSOA:
		reply.Answer = []dns.RR{soa(origin)}
		return reply, nil
	case !exists && !isPod && !s.podNamespace(name, origin):
		reply.Rcode = dns.RcodeNameError
	}
	reply.Ns = []dns.RR{soa(origin)}
	return reply, nil
}

// records copies the node's records of q's type, under q's name in its spelling.
func (s *Static) records(q *question, node map[uint16][]dns.RR) []dns.RR {
	var out []dns.RR
	for _, rr := range node[q.Qtype] {
		c := dns.Copy(rr)
		c.Header().Name = q.Name
		out = append(out, c)
	}
	return out
}

// additional returns the addresses of the targets of SRV records.
func (s *Static) additional(answer []dns.RR) []dns.RR {
	var out []dns.RR
	seen := make(map[string]bool)
	for _, rr := range answer {
		srv, ok := rr.(*dns.SRV)
		if !ok || seen[dns.CanonicalName(srv.Target)] {
			continue
		}
		target := dns.CanonicalName(srv.Target)
		seen[target] = true
		for _, t := range []uint16{dns.TypeA, dns.TypeAAAA} {
			for _, a := range s.nodes[target][t] {
				out = append(out, dns.Copy(a))
			}
		}
	}
	return out
}

// soa is the SOA record that CoreDNS synthesises for a zone.
func soa(origin string) *dns.SOA {
	below := strings.TrimPrefix(origin, ".")
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: origin, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: staticTTL},
		Ns:  "ns.dns." + below, Mbox: "hostmaster." + below,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: staticTTL,
	}
}

// podAddr returns the address in the name of a pod, a-b-c-d.NAMESPACE.pod under
// the origin. Any address is accepted, as with "pods insecure".
func (s *Static) podAddr(name, origin string) (netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, ".pod."+origin)
	if !ok || isReverse(origin) {
		return netip.Addr{}, false
	}
	label, namespace, ok := strings.Cut(rest, ".")
	if !ok || namespace == "" || strings.Contains(namespace, ".") {
		return netip.Addr{}, false
	}
	sep := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		sep = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", sep))
	return a, err == nil && a.Zone() == ""
}

// podNamespace reports whether name is the parent of the pods of a namespace
// that has services, or the parent of all pods. Both exist without records.
func (s *Static) podNamespace(name, origin string) bool {
	if isReverse(origin) {
		return false
	}
	if name == "pod."+origin {
		return true
	}
	namespace, ok := strings.CutSuffix(name, ".pod."+origin)
	_, exists := s.nodes[namespace+".svc."+origin]
	return ok && exists
}

func isReverse(origin string) bool { return dns.IsSubDomain("arpa.", origin) }

func podType(a netip.Addr) uint16 {
	if a.Is4() {
		return dns.TypeA
	}
	return dns.TypeAAAA
}

func podRecord(owner string, a netip.Addr) dns.RR {
	hdr := dns.RR_Header{Name: owner, Rrtype: podType(a), Class: dns.ClassINET, Ttl: staticTTL}
	if a.Is4() {
		return &dns.A{Hdr: hdr, A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: hdr, AAAA: a.AsSlice()}
}
