package server

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// ACLVerdict is what an ACL makes of a query.
type ACLVerdict int

// The verdicts.
const (
	ACLAllow  ACLVerdict = iota
	ACLBlock             // REFUSED
	ACLFilter            // NOERROR without records
	ACLDrop              // silence
	numACLVerdicts
)

// ACL decides who may ask what. The first rule for the name that has a policy
// for the query decides; without one the query is allowed.
type ACL struct {
	Rules []ACLRule
}

// ACLRule is one acl directive.
type ACLRule struct {
	Zones    []string // fully qualified
	Policies []ACLPolicy

	zones [][]byte
}

// ACLPolicy is one line of it.
type ACLPolicy struct {
	Verdict ACLVerdict
	Types   []uint16       // empty: all
	Nets    []netip.Prefix // empty: all
}

// NewACL makes an ACL of its rules.
func NewACL(rules []ACLRule) (*ACL, error) {
	a := &ACL{Rules: rules}
	for i := range a.Rules {
		r := &a.Rules[i]
		var err error
		if r.zones, err = wireNames(r.Zones); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// judge applies the rules. A nil ACL allows everything.
func (a *ACL) judge(q *Query) ACLVerdict {
	if a == nil {
		return ACLAllow
	}
	client := q.client.Addr().Unmap().WithZone("")
	for i := range a.Rules {
		r := &a.Rules[i]
		if !slices.ContainsFunc(r.zones, func(z []byte) bool { return bytes.Equal(q.lower, z) || isBelow(q.lower, z) }) {
			continue
		}
		for _, p := range r.Policies {
			if p.covers(q.qtype, client) {
				return p.Verdict
			}
		}
	}
	return ACLAllow
}

func (p *ACLPolicy) covers(qtype uint16, client netip.Addr) bool {
	return (len(p.Types) == 0 || slices.Contains(p.Types, qtype)) &&
		(len(p.Nets) == 0 || slices.ContainsFunc(p.Nets, func(n netip.Prefix) bool { return n.Contains(client) }))
}

// reply appends the reply to a query that is not allowed, RFC 8914 §4.16 and
// §4.18.
func (v ACLVerdict) reply(dst []byte, q *Query) ([]byte, outcome) {
	o := outcome{plugin: pluginIndex("acl")}
	switch v {
	case ACLBlock:
		o.rcode = dns.RcodeRefused
		return appendError(dst, q, o.rcode, ede{set: true, code: dns.ExtendedErrorCodeBlocked}), o
	case ACLFilter:
		return appendError(dst, q, dns.RcodeSuccess, ede{set: true, code: dns.ExtendedErrorCodeFiltered}), o
	}
	o.dropped = true
	return nil, o
}
