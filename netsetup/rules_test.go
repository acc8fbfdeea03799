package netsetup

import (
	"net/netip"
	"regexp"
	"testing"

	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
)

// progname is nft's comment with the owner of a table.
var progname = regexp.MustCompile(` # progname .*`)

func TestEnsureRulesTwice(t *testing.T) {
	ns := newNamespace(t)
	before := ns.snapshot(t)
	cfg := ns.config(onLo, "g1")
	cfg.Addrs = append([]netip.Addr{netip.MustParseAddr("10.96.0.10")}, nstest.LocalIPs...)
	h := newHost(t, cfg)
	must(t, h.Rules.Ensure)
	once := ns.snapshot(t)
	must(t, h.Rules.Ensure)
	if twice := ns.snapshot(t); twice != once {
		t.Errorf("second Ensure changed\n%s\nto\n%s", once, twice)
	}
	t.Run("golden", func(t *testing.T) {
		nstest.Golden(t, "rules.nft", progname.ReplaceAllString(ns.Command(t, "nft", "list", "ruleset"), ""))
	})
	must(t, h.Rules.Remove)
	if after := ns.snapshot(t); after != before {
		t.Errorf("after removal:\n%s\nbefore:\n%s", after, before)
	}
}
