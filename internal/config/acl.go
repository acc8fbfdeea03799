package config

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// ACL is one acl directive.
type ACL struct {
	Line     int
	Zones    []string // fully qualified; empty: all zones of the block
	Policies []ACLPolicy
}

// ACLAction is what happens to a query that matches a policy.
type ACLAction string

// The actions.
const (
	ACLAllow  ACLAction = "allow"
	ACLBlock  ACLAction = "block"  // REFUSED
	ACLFilter ACLAction = "filter" // NOERROR without records
	ACLDrop   ACLAction = "drop"   // no reply
)

// ACLPolicy is one line of an acl directive.
type ACLPolicy struct {
	Action ACLAction
	Types  []uint16       // empty: all
	Nets   []netip.Prefix // empty: all
}

// parseACL reads acl [ZONES…] and its policies.
func parseACL(b *Block, s statement) error {
	a := &ACL{Line: s.line}
	var err error
	if a.Zones, err = parseZoneList(s, 0); err != nil {
		return err
	}
	b.ACL = append(b.ACL, a)
	return s.eachOption(func(string) bool { return true }, a.parsePolicy)
}

func (a *ACL) parsePolicy(o statement) error {
	p := ACLPolicy{Action: ACLAction(strings.ToLower(o.text))}
	switch p.Action {
	case ACLAllow, ACLBlock, ACLFilter, ACLDrop:
	default:
		return o.unknown()
	}
	for args := o.argTexts(); len(args) > 0; {
		section := strings.ToLower(args[0])
		if !isACLSection(section) {
			return o.errorf("%q is neither type nor net", args[0])
		}
		n := 1
		for n < len(args) && !isACLSection(strings.ToLower(args[n])) {
			n++
		}
		if n == 1 {
			return o.errorf("a value is missing after %s", section)
		}
		if err := p.parseSection(section, args[1:n]); err != nil {
			return o.fail(err)
		}
		args = args[n:]
	}
	a.Policies = append(a.Policies, p)
	return nil
}

func isACLSection(word string) bool { return word == "type" || word == "net" }

// parseSection reads the words after type or net; * means all.
func (p *ACLPolicy) parseSection(section string, words []string) error {
	for _, w := range words {
		if w == "*" {
			p.clear(section)
			return nil
		}
		if section == "type" {
			t, err := parseType(w)
			if err != nil {
				return err
			}
			p.Types = append(p.Types, t)
			continue
		}
		n, err := parsePrefix(w)
		if err != nil {
			return err
		}
		p.Nets = append(p.Nets, n)
	}
	return nil
}

func (p *ACLPolicy) clear(section string) {
	if section == "type" {
		p.Types = nil
	} else {
		p.Nets = nil
	}
}

// parsePrefix reads an address or a network.
func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, reason("%q is neither an address nor a network such as 10.0.0.0/8", text)
	}
	return p.Masked(), nil
}

// parseType reads the name of a record type in upper or lower case.
func parseType(text string) (uint16, error) {
	t, ok := dns.StringToType[strings.ToUpper(text)]
	if !ok {
		return 0, reason("%q is not a record type", text)
	}
	return t, nil
}

func typeNames(types []uint16) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = dns.TypeToString[t]
	}
	return strings.Join(names, " ")
}

func (a *ACL) describe() []string {
	values := []string{"zones " + wordsOr(a.Zones, "of the block")}
	for _, p := range a.Policies {
		nets := make([]string, len(p.Nets))
		for i, n := range p.Nets {
			nets[i] = n.String()
		}
		types := typeNames(p.Types)
		if types == "" {
			types = "all"
		}
		values = append(values, string(p.Action)+" type "+types+" net "+wordsOr(nets, "all"))
	}
	return values
}
