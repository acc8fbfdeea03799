package netsetup

import (
	"net/netip"
	"regexp"
	"testing"
)

// progname is nft's note on who owns a table.
var progname = regexp.MustCompile(` # progname .*`)

func TestEnsureRulesTwice(t *testing.T) {
	ns := newNamespace(t)
	before := ns.snapshot(t)
	cfg := ns.config(modes[1], "g1")
	cfg.Addrs = append([]netip.Addr{netip.MustParseAddr("10.96.0.10")}, bothFamilies...)
	h := newHost(t, cfg)
	must(t, h.EnsureRules)
	once := ns.snapshot(t)
	must(t, h.EnsureRules)
	if twice := ns.snapshot(t); twice != once {
		t.Errorf("second EnsureRules changed\n%s\nto\n%s", once, twice)
	}
	t.Run("golden", func(t *testing.T) {
		golden(t, "rules.nft", progname.ReplaceAllString(ns.command(t, "nft", "list", "ruleset"), ""))
	})
	must(t, h.RemoveRules)
	if after := ns.snapshot(t); after != before {
		t.Errorf("after removal:\n%s\nbefore:\n%s", after, before)
	}
}
