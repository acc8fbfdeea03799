package netsetup

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// AcceptsStatus tells of the accept rules in chains of others.
type AcceptsStatus struct {
	Chains  []string `json:"chains,omitempty"`  // that hold rules of ours: family, table, name
	Lacking []string `json:"lacking,omitempty"` // that drop by default and could hold rules of ours, but do not
	Problem string   `json:"problem,omitempty"` // "" where all is as wanted
}

func (s AcceptsStatus) where() string {
	if len(s.Chains) == 0 {
		return "none needed"
	}
	return "in " + strings.Join(s.Chains, ", ")
}

// ForeignDrop is something of others that drops the local IPs' traffic.
type ForeignDrop struct {
	What string `json:"what"` // "chain inet firewall INPUT", "the filter table of iptables-legacy"
	Why  string `json:"why"`  // a verb phrase: what it does and why it is left alone
}

func (h *Host) readAccepts(s *Status) error {
	chains, err := h.foreignChains()
	if err != nil {
		return err
	}
	var problems []string
	for _, c := range chains {
		if len(c.marked(everyGeneration)) > 0 {
			s.Accepts.Chains = append(s.Accepts.Chains, c.String())
		}
		same, err := c.asWanted(h.cfg)
		if err != nil {
			return err
		}
		if !same {
			problems = append(problems, c.String())
		}
		if len(c.accepts(h.cfg)) > 0 && !same {
			s.Accepts.Lacking = append(s.Accepts.Lacking, c.String())
		}
		if why := c.stillDrops(h.cfg); why != "" {
			s.ForeignDrops = append(s.ForeignDrops, ForeignDrop{"chain " + c.String(), why})
		}
	}
	if problems != nil {
		s.Accepts.Problem = "missing or wrong in chain " + strings.Join(problems, ", ")
	}
	legacy, err := h.legacyFilters()
	s.ForeignDrops = append(s.ForeignDrops, legacy...)
	return err
}

// asWanted says whether one generation has all its rules in the chain, and
// nobody has any where none are needed.
func (c *foreignChain) asWanted(cfg Config) (bool, error) {
	if len(c.accepts(cfg)) == 0 {
		return len(c.marked(everyGeneration)) == 0, nil
	}
	for _, r := range c.rules {
		generation, ok := r.generation()
		if !ok {
			continue
		}
		cfg.Generation = generation
		same, err := sameRules(c.marked(func(g string) bool { return g == generation }), c.accepts(cfg))
		if same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// stillDrops says why the chain drops our traffic as it is; "" where it does
// not, or only until EnsureAccepts.
func (c *foreignChain) stillDrops(cfg Config) string {
	concerned := slices.ContainsFunc(cfg.localIPs(), func(ip netip.Addr) bool { return carries(c.table.family, ip) })
	ours := c.marked(everyGeneration)
	switch {
	case c.fate != drops || !concerned:
		return ""
	case c.hook == *nftables.ChainHookPrerouting:
		return "drops by default at prerouting, where nodens adds no rules: let the local IPs pass"
	case c.kind != nftables.ChainTypeFilter:
		return fmt.Sprintf("drops by default in a chain of type %s, to which nodens adds no rules: let the local IPs pass", c.kind)
	case c.owned:
		return "drops by default, and a process owns its table and lets nobody add rules: let the local IPs pass there"
	case len(ours) > 0 && c.decides < c.index(ours[len(ours)-1]):
		return "drops everything by a rule before those of nodens"
	}
	return ""
}

func (c *foreignChain) index(r dumpedRule) int {
	return slices.IndexFunc(c.rules, func(o dumpedRule) bool { return o.handle == r.handle })
}

// legacyFilters names the filter tables of iptables-legacy, which only its own
// programs can read.
func (h *Host) legacyFilters() (found []ForeignDrop, err error) {
	for _, f := range []struct{ file, program string }{
		{"ip_tables_names", "iptables-legacy"}, {"ip6_tables_names", "ip6tables-legacy"},
	} {
		var names []byte
		err := inNetNS(h.cfg.NetNS, func() (err error) {
			names, err = os.ReadFile("/proc/thread-self/net/" + f.file)
			return err
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // no such tables, or not for our eyes
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for tables of %s: %w", f.program, err)
		}
		if slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, ForeignDrop{"the filter table of " + f.program,
				"cannot be read nor changed by nodens: if it drops, let the local IPs pass there"})
		}
	}
	return found, nil
}
