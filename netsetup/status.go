package netsetup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Status is what the kernel has, compared with the Config. Generations and
// problems are those found; it holds whoever made the state.
type Status struct {
	Interface  string          `json:"interface"`            // the link that carries the local IPs, "lo" in the fallback, "" where none does
	Generation string          `json:"generation,omitempty"` // that the link is marked with
	Addresses  []AddressStatus `json:"addresses"`
	Rules      RulesStatus     `json:"rules"`
	Accepts    AcceptsStatus   `json:"accepts"`

	// ForeignDrops are what of others drops the local IPs' traffic.
	ForeignDrops []ForeignDrop `json:"foreignDrops,omitempty"`
}

// AddressStatus tells of one local IP.
type AddressStatus struct {
	Address netip.Addr `json:"address"`
	Link    string     `json:"link,omitempty"`    // "" where the address is missing
	Problem string     `json:"problem,omitempty"` // "" where all is as wanted
}

// RulesStatus tells of the nftables tables.
type RulesStatus struct {
	Present    bool     `json:"present"`
	Generation string   `json:"generation,omitempty"` // that the table is marked with
	Live       []string `json:"live,omitempty"`       // tables that live as long as their process
	Problem    string   `json:"problem,omitempty"`    // "" where all is as wanted
}

// OK says whether everything is as wanted. ForeignDrops are not judged.
func (s Status) OK() bool {
	return s.Rules.Problem == "" && s.Accepts.Problem == "" && !slices.ContainsFunc(s.Addresses, func(a AddressStatus) bool { return a.Problem != "" })
}

// String has a line per address and one for the rules.
func (s Status) String() string {
	var b strings.Builder
	for _, a := range s.Addresses {
		fmt.Fprintf(&b, "address %s: %s\n", a.Address, orOK(a.Problem, "on "+a.Link))
	}
	fmt.Fprintf(&b, "rules: %s\n", orOK(s.Rules.Problem, "table inet "+tableName))
	fmt.Fprintf(&b, "accepts: %s\n", orOK(s.Accepts.Problem, s.Accepts.where()))
	for _, d := range s.ForeignDrops {
		fmt.Fprintf(&b, "note: %s %s\n", d.What, d.Why)
	}
	return b.String()
}

func orOK(problem, good string) string {
	if problem != "" {
		return problem
	}
	return good
}

// Status reads the kernel's state and changes nothing.
func (h *Host) Status(ctx context.Context) (Status, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return Status{}, err
	}
	var s Status
	err := errors.Join(h.readLink(&s), h.readAddresses(&s), h.readRules(&s), h.readAccepts(&s))
	return s, err
}

func (h *Host) readLink(s *Status) error {
	l, err := h.kernel.link(h.cfg.Interface)
	if err != nil || l == nil {
		return err
	}
	s.Interface = h.cfg.Interface
	s.Generation, _ = generationOfAlias(l.Attrs().Alias)
	return nil
}

func (h *Host) readAddresses(s *Status) error {
	have, err := h.kernel.addrs()
	if err != nil {
		return err
	}
	for _, ip := range h.cfg.Addrs {
		as := AddressStatus{Address: ip}
		if ip.IsLoopback() {
			as.Link = "lo"
		} else {
			h.judgeAddress(&as, have)
		}
		if as.Link == "lo" && s.Interface == "" && !ip.IsLoopback() {
			s.Interface = "lo"
		}
		s.Addresses = append(s.Addresses, as)
	}
	return nil
}

func (h *Host) judgeAddress(as *AddressStatus, have []ifAddr) {
	i := slices.IndexFunc(have, func(a ifAddr) bool { return a.prefix.Addr() == as.Address })
	if i < 0 {
		as.Problem = "missing"
		return
	}
	a := have[i]
	as.Link = h.kernel.linkName(a.link)
	switch l, err := h.kernel.link(as.Link); {
	case as.Link != h.cfg.Interface && as.Link != "lo":
		as.Problem = "on link " + as.Link + ", which is not ours"
	case err != nil || l == nil || !isUp(l):
		as.Problem = "link " + as.Link + " is not up"
	case as.Link == h.cfg.Interface && l.Type() != h.cfg.linkType:
		as.Problem = fmt.Sprintf("link %s has type %s, want %s", as.Link, l.Type(), h.cfg.linkType)
	case !a.usable() && !foreignOnLo(a):
		as.Problem = fmt.Sprintf("%s on link %s has a wrong prefix length, scope or lifetime, or is a duplicate", a.prefix, as.Link)
	}
}

func (h *Host) readRules(s *Status) error {
	generation, found, err := h.tableGeneration()
	if err != nil {
		return err
	}
	live, err := h.liveTables()
	if err != nil {
		return err
	}
	s.Rules = RulesStatus{Present: found, Generation: generation, Live: live}
	s.Rules.Problem, err = h.judgeRules(s.Rules)
	return err
}

// judgeRules compares with what the generation found would have made, on a
// kernel with the socket expression or without. How the daemon listens is left
// open: who asks for the status need not know.
func (h *Host) judgeRules(r RulesStatus) (problem string, err error) {
	if len(h.localIPs) == 0 {
		return "", nil
	}
	if !r.Present {
		return "missing", nil
	}
	cfg := h.cfg
	cfg.Generation = r.Generation
	for _, v := range []struct{ guard, wildcard bool }{{true, false}, {true, true}, {false, false}} {
		cfg.WildcardListeners = v.wildcard
		same, err := h.tableIs(tableName, cfg.baseChains(v.guard))
		if err != nil {
			return "", err
		}
		if same {
			return h.judgeLive(cfg, v.guard)
		}
	}
	return "table inet " + tableName + " differs from what this configuration makes", nil
}

func (h *Host) judgeLive(cfg Config, guard bool) (problem string, err error) {
	want := cfg.liveChains(guard)
	if want == nil {
		return "", nil
	}
	name := livePrefix + cfg.Generation
	same, err := h.tableIs(name, want)
	if err == nil && !same {
		problem = "table inet " + name + " is missing: no process runs, or the kernel is older than 5.12"
	}
	return problem, err
}
