package action

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// ACLVerdict is an ACL's decision about a query.
type ACLVerdict int

// The verdicts.
const (
	ACLAllow       ACLVerdict = iota
	ACLBlock                  // REFUSED
	ACLFilter                 // NOERROR without records
	ACLDrop                   // no reply
	NumACLVerdicts            // the number of verdicts
)

// ACL decides which clients may send which queries. The first policy that
// covers the query decides, in the first rule for the name that has one.
// Without one, the query is allowed.
type ACL struct {
	rules []ACLRule
}

// ACLRule is one acl directive.
type ACLRule struct {
	Zones    []string // fully qualified
	Policies []ACLPolicy

	zones [][]byte
}

// ACLPolicy is one line of an acl directive.
type ACLPolicy struct {
	Verdict ACLVerdict
	Types   []uint16       // empty: all
	Nets    []netip.Prefix // empty: all
}

// NewACL makes an ACL of its rules.
func NewACL(rules []ACLRule) (*ACL, error) {
	a := &ACL{rules: slices.Clone(rules)}
	for i := range a.rules {
		r := &a.rules[i]
		var err error
		if r.zones, err = dnsname.PackAll(r.Zones); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Judge applies the rules to a query. name is in lower-case wire format. A nil
// ACL allows everything. Judge does not allocate.
func (a *ACL) Judge(name []byte, qtype uint16, client netip.Addr) ACLVerdict {
	if a == nil {
		return ACLAllow
	}
	client = client.Unmap().WithZone("")
	for i := range a.rules {
		r := &a.rules[i]
		if !slices.ContainsFunc(r.zones, func(z []byte) bool { return bytes.Equal(name, z) || dnsname.IsBelow(name, z) }) {
			continue
		}
		for _, p := range r.Policies {
			if p.covers(qtype, client) {
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
