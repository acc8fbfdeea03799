package firewall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/nodens-dns/nodens/netsetup/internal/netns"
	"github.com/nodens-dns/nodens/netsetup/internal/nft"
)

// Status is the state of our accept rules. Chains are named by family, table and
// name.
type Status struct {
	Chains  []string // have accept rules of ours
	Lacking []string // drop by default and have no accept rules of ours
	Problem string   // "" if the rules are as wanted

	Drops []Drop // what drops the local IPs' traffic and cannot be opened
}

// Drop is a firewall that drops the local IPs' traffic.
type Drop struct {
	What string // "chain inet firewall INPUT", "the filter table of iptables-legacy"
	Why  string // a verb phrase: how it drops and why nodens does not change it
}

// Status reads the kernel's state and changes nothing.
func (f *Firewall) Status() (s Status, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	chains, err := readChains(f.nft)
	if err != nil {
		return s, err
	}
	var problems []string
	for _, c := range chains {
		if len(c.marked(everyGeneration)) > 0 {
			s.Chains = append(s.Chains, c.String())
		}
		same, err := f.want.asWanted(c)
		if err != nil {
			return s, err
		}
		if !same {
			problems = append(problems, c.String())
			if len(f.want.accepts(c, "")) > 0 {
				s.Lacking = append(s.Lacking, c.String())
			}
		}
		if why := f.want.stillDrops(c); why != "" {
			s.Drops = append(s.Drops, Drop{"chain " + c.String(), why})
		}
	}
	if problems != nil {
		s.Problem = "missing or wrong in chain " + strings.Join(problems, ", ")
	}
	legacy, err := legacyFilters(f.id.NetNS)
	s.Drops = append(s.Drops, legacy...)
	return s, err
}

// Blocked returns a chain that certainly drops our traffic although it may have our
// rules, with the reason; nil if there is none. A chain that accepts something, as
// firewalld's with a trusted zone does, may accept our traffic.
func (f *Firewall) Blocked() (*Drop, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	chains, err := readChains(f.nft)
	for _, c := range chains {
		if why := f.want.stillDrops(c); why != "" && !c.excepts {
			return &Drop{"chain " + c.String(), why}, err
		}
	}
	return nil, err
}

// asWanted reports whether one generation has all its rules in the chain, or no
// generation has any if none are needed.
func (w wanted) asWanted(c *chain) (bool, error) {
	if len(w.accepts(c, "")) == 0 {
		return len(c.marked(everyGeneration)) == 0, nil
	}
	for _, r := range c.rules {
		g, ok := generation(r)
		if !ok {
			continue
		}
		have, want := c.marked(func(other string) bool { return other == g }), w.accepts(c, g)
		if w.targets == nil { // this process may not know them; their rules are last
			have = have[:min(len(have), len(want))]
		}
		same, err := nft.SameRules(have, want)
		if same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// stillDrops returns why the chain drops our traffic even with our rules; "" if
// it does not.
func (w wanted) stillDrops(c *chain) string {
	concerned := slices.ContainsFunc(w.places(), func(p place) bool { return carries(c.table.Family, p.ip) })
	if c.outcome != drops || !concerned {
		return ""
	}
	marked := c.marked(everyGeneration)
	switch {
	case c.hook == *nftables.ChainHookPrerouting:
		return "drops by default at prerouting, where nodens adds no rules: let the local IPs pass"
	case c.kind != nftables.ChainTypeFilter:
		return fmt.Sprintf("drops by default in a chain of type %s, to which nodens adds no rules: let the local IPs pass", c.kind)
	case c.owned:
		return "drops by default, and a process owns its table, so that no other can add rules: let the local IPs pass there"
	case len(marked) > 0 && c.decides < c.index(marked[len(marked)-1]):
		return "drops everything by a rule before those of nodens"
	}
	return ""
}

func (c *chain) index(r nft.DumpedRule) int {
	return slices.IndexFunc(c.rules, func(o nft.DumpedRule) bool { return o.Handle == r.Handle })
}

// legacyFilters returns the filter tables of iptables-legacy, which only its own
// programs can read.
func legacyFilters(netNS int) (found []Drop, err error) {
	for _, f := range []struct{ file, program string }{
		{"ip_tables_names", "iptables-legacy"}, {"ip6_tables_names", "ip6tables-legacy"},
	} {
		var names []byte
		err := netns.Do(netNS, func() (err error) {
			names, err = os.ReadFile("/proc/thread-self/net/" + f.file)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // no such tables, or no permission to read them
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for tables of %s: %w", f.program, err)
		}
		if slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, Drop{"the filter table of " + f.program,
				"cannot be read or changed by nodens: if it drops, let the local IPs pass there"})
		}
	}
	return found, nil
}
