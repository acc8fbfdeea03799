package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodens-dns/nodens/netsetup/firewall"
	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// Status compares the kernel's state with the Config, whichever generation made
// it.
type Status struct {
	Interface  string // the link with the local IPs, "lo" in the fallback, "" if there is none
	Generation string // mark of the link
	Addresses  []AddressStatus
	Rules      RulesStatus
	Firewall   firewall.Status
}

// AddressStatus is the state of one local IP.
type AddressStatus struct {
	Address netip.Addr
	Link    string // "" if the address is missing
	Problem string // "" if the address is as wanted
}

// RulesStatus is the state of the nftables tables.
type RulesStatus struct {
	Present    bool
	Generation string   // mark of the table
	Owned      []string // tables that exist as long as their process
	Problem    string   // "" if the tables are as wanted
}

// OK reports whether everything is as wanted. It ignores Firewall.Drops.
func (s Status) OK() bool {
	return s.Rules.Problem == "" && s.Firewall.Problem == "" &&
		!slices.ContainsFunc(s.Addresses, func(a AddressStatus) bool { return a.Problem != "" })
}

// Status reads the kernel's state and changes nothing.
func (h *Host) Status(ctx context.Context) (s Status, err error) {
	if err := ctx.Err(); err != nil {
		return s, err
	}
	var rulesErr, firewallErr error
	err = h.Addresses.status(&s)
	s.Rules, rulesErr = h.Rules.status()
	s.Firewall, firewallErr = h.Firewall.Status()
	return s, errors.Join(err, rulesErr, firewallErr)
}

func (a *Addresses) status(s *Status) error {
	l, err := a.kernel.link(a.link.name)
	if err != nil {
		return err
	}
	if l != nil {
		s.Interface = a.link.name
		s.Generation, _ = owner.Generation(l.Attrs().Alias)
	}
	have, err := a.kernel.addrs()
	if err != nil {
		return err
	}
	for _, ip := range a.all {
		as := AddressStatus{Address: ip, Link: "lo"}
		if !ip.IsLoopback() {
			as.Link, as.Problem = a.link.check(ip, have)
			if as.Link == "lo" && s.Interface == "" {
				s.Interface = "lo"
			}
		}
		s.Addresses = append(s.Addresses, as)
	}
	return nil
}

// check returns the link that carries ip and what is wrong.
func (d *link) check(ip netip.Addr, have []ifAddr) (name, problem string) {
	i := slices.IndexFunc(have, func(a ifAddr) bool { return a.prefix.Addr() == ip })
	if i < 0 {
		return "", "missing"
	}
	a := have[i]
	name = d.kernel.linkName(a.link)
	switch l, err := d.kernel.link(name); {
	case name != d.name && name != "lo":
		problem = "on link " + name + ", which is not ours"
	case err != nil || l == nil || !isUp(l):
		problem = "link " + name + " is not up"
	case name == d.name && l.Type() != d.kind:
		problem = fmt.Sprintf("link %s has type %s, want %s", name, l.Type(), d.kind)
	case !a.usable() && !unmarkedOnLo(a):
		problem = fmt.Sprintf("%s on link %s has a wrong prefix length, scope or lifetime, or is a duplicate", a.prefix, name)
	}
	return name, problem
}

func (r *Rules) status() (s RulesStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Generation, s.Present, err = tableGeneration(r.nft); err != nil {
		return s, err
	}
	if s.Owned, err = ownedTables(r.nft); err != nil {
		return s, err
	}
	if len(r.want.localIPs) == 0 {
		return s, nil
	}
	if !s.Present {
		s.Problem = "missing"
		return s, nil
	}
	s.Problem, err = r.want.problem(r.nft, s.Generation)
	return s, err
}

// problem compares the tables with those that the generation would have made, with
// the socket expression or without. It accepts either value of WildcardListeners,
// because the caller of Status may not know it.
func (s ruleset) problem(client nft.Client, generation string) (string, error) {
	s.generation = generation
	for _, v := range []struct{ socketExpr, wildcard bool }{{true, false}, {true, true}, {false, false}} {
		s.socketExpr, s.wildcard = v.socketExpr, v.wildcard
		same, err := tableIs(client, tableName, s.base())
		if err != nil {
			return "", err
		}
		if !same {
			continue
		}
		name := ownedPrefix + generation
		if owned := s.owned(); owned != nil {
			if same, err = tableIs(client, name, owned); err == nil && !same {
				return "table inet " + name + " is missing: no process runs, or the kernel is older than 5.12", nil
			}
		}
		return "", err
	}
	return "table inet " + tableName + " differs from what this configuration makes", nil
}
