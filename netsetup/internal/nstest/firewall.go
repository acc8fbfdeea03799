package nstest

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Firewall is a host firewall without rules for the local IPs. It accepts neighbour
// discovery and drops everything else, also on lo.
type Firewall struct {
	Name     string
	Commands [][]string
	Golden   []string // command whose output is compared; nil: none
}

// Nft is a command that runs a script of nft.
func Nft(script string) []string { return []string{"nft", script} }

// StrictInet is the script of the first of Firewalls.
const StrictInet = `table inet firewall {
	chain in { type filter hook input priority filter; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
	chain out { type filter hook output priority filter; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
}`

const (
	rejectingInet = `table inet firewalld {
	chain zones { iifname "eth7" accept; }
	chain last { counter; reject with icmpx admin-prohibited; }
	chain in { type filter hook input priority filter + 10; policy accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; jump zones; jump last; }
	chain out { type filter hook output priority filter + 10; policy accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; goto last; }
}`
	strictPerFamily = `table ip firewall {
	chain in { type filter hook input priority -10; policy drop; }
	chain out { type filter hook output priority -10; policy drop; }
}
table ip6 firewall {
	chain in { type filter hook input priority -10; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
	chain out { type filter hook output priority -10; policy drop; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }
}`
)

// iptables is an administrator's script for the nf_tables variant.
func iptables(drop func(program, chain string) []string) (script [][]string) {
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			if program == "ip6tables-nft" {
				script = append(script, []string{program, "-A", chain, "-p", "icmpv6", "-j", "ACCEPT"})
			}
			script = append(script, drop(program, chain))
		}
	}
	return script
}

// Firewalls are the kinds that nodens can open.
var Firewalls = []Firewall{
	{"inet", [][]string{Nft(StrictInet)}, []string{"nft", "list", "table", "inet", "firewall"}},
	{"families", [][]string{Nft(strictPerFamily)}, []string{"nft", "list", "table", "ip6", "firewall"}},
	{"reject", [][]string{Nft(rejectingInet)}, nil},
	{"iptables-policy", iptables(func(program, chain string) []string {
		return []string{program, "-P", chain, "DROP"}
	}), []string{"iptables-nft", "-S"}},
	{"iptables-last", iptables(func(program, chain string) []string {
		return []string{program, "-A", chain, "-m", "comment", "--comment", "the rest", "-j", "REJECT"}
	}), []string{"ip6tables-nft", "-S"}},
}

// SetUp installs the firewall.
func (f Firewall) SetUp(t *testing.T, ns *Namespace) {
	t.Helper()
	for _, c := range f.Commands {
		ns.Command(t, c[0], c[1:]...)
	}
}

var (
	counters       = regexp.MustCompile(`(packets|bytes) \d+`)
	policyCounters = regexp.MustCompile(`\[\d+:\d+\]`)
)

// WithoutCounts sets all counters in nft's output to 0.
func WithoutCounts(s string) string { return counters.ReplaceAllString(s, "$1 0") }

// FirewallState returns every rule of every table, without counters.
func (ns *Namespace) FirewallState(t *testing.T) string {
	t.Helper()
	s := WithoutCounts(ns.Command(t, "nft", "-a", "list", "ruleset"))
	for _, program := range []string{"iptables-nft-save", "ip6tables-nft-save"} {
		if _, err := exec.LookPath(program); err == nil && strings.Contains(s, "filter {") {
			for line := range strings.Lines(ns.Command(t, program)) {
				if !strings.HasPrefix(line, "#") { // the time
					s += policyCounters.ReplaceAllString(line, "")
				}
			}
		}
	}
	return s
}

// WantFirewall compares FirewallState with an earlier one.
func (ns *Namespace) WantFirewall(t *testing.T, when, want string) {
	t.Helper()
	if got := ns.FirewallState(t); got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", when, got, want)
	}
}
