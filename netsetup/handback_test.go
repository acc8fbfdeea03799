package netsetup

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nstest"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// state is what nodens sets up, without handles.
func (ns *namespace) state(t *testing.T) string {
	t.Helper()
	return ns.links(t) + ns.addrState(t) + ns.ruleState(t)
}

// deletions starts recording. The returned function returns the links and
// addresses that were deleted before its call.
func (ns *namespace) deletions(t *testing.T) func() []string {
	t.Helper()
	conn, err := subscribe(ns.FD(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return func() (gone []string) {
		t.Helper()
		const last = "192.0.2.99/32" // notifications come in order
		lo := ns.AddAddr(t, "lo", last)
		for {
			msgs, err := conn.Receive()
			check(t, err)
			for _, m := range msgs {
				switch a, err := parseIfAddr(m.Data); m.Header.Type {
				case unix.RTM_DELLINK:
					gone = append(gone, "a link")
				case unix.RTM_DELADDR:
					gone = append(gone, fmt.Sprint(a.prefix, err))
				case unix.RTM_NEWADDR:
					if a.prefix.String() == last {
						check(t, ns.DeleteAddr(lo, last))
						return gone
					}
				}
			}
		}
	}
}

// The newer process ends first: the older one gets its setup back, without an
// interruption.
func TestHandsBack(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		clean := ns.snapshot(t)
		cfg := ns.config(m, "g1")
		cfg.Addrs = append(slices.Clone(nstest.Services), nstest.LocalIPs...)
		older := newHost(t, cfg)
		must(t, older.ensureBoth)
		before, gone := ns.state(t), ns.deletions(t)
		for _, generation := range []string{"g2", "g3"} {
			cfg.Generation = generation
			newer := newHost(t, cfg)
			must(t, newer.ensureBoth)
			if ns.state(t) == before {
				t.Fatal("the newer process adopted nothing")
			}
			for range 2 {
				must(t, newer.removeBoth)
				if got := ns.state(t); got != before {
					t.Errorf("after %s's end:\n%s\nbefore:\n%s", generation, got, before)
				}
			}
			check(t, newer.Close())
		}
		wantOK(t, older)
		if d := gone(); len(d) != 0 {
			t.Errorf("deleted meanwhile: %v", d)
		}
		must(t, older.removeBoth)
		if got := ns.snapshot(t); got != clean {
			t.Errorf("the older process left:\n%s\nwant:\n%s", got, clean)
		}
	})
}

// A process that has ended gets nothing back. The kernel does the same for a
// killed process as Close.
func TestRemovesAfterPredecessor(t *testing.T) {
	for name, end := range map[string]func(*Host) error{
		"closed":  (*Host).Close,
		"removed": func(h *Host) error { return h.removeBoth(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, ns *namespace, m mode) {
				clean := ns.snapshot(t)
				older, newer := newHost(t, ns.config(m, "g1")), newHost(t, ns.config(m, "g2"))
				must(t, older.ensureBoth)
				must(t, newer.ensureBoth)
				check(t, end(older))
				must(t, newer.removeBoth)
				if got := ns.snapshot(t); got != clean {
					t.Errorf("left:\n%s\nwant:\n%s", got, clean)
				}
			})
		})
	}
}

// A killed process hands nothing back. The older one waits, then ignores its
// marks.
func TestTakesBackFromKilled(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg, now := ns.config(m, "g1"), time.Now()
		cfg.now = func() time.Time { return now }
		older := newHost(t, cfg)
		must(t, older.ensureBoth)
		before := ns.state(t)
		cfg = ns.config(m, "g2")
		cfg.Addrs = []netip.Addr{nstest.LocalIPs[0], netip.MustParseAddr("fd00:53::11")}
		newer := newHost(t, cfg)
		must(t, newer.ensureBoth)
		check(t, newer.Close())
		adopted := ns.state(t)
		if repairFails(older) || ns.state(t) != adopted {
			t.Errorf("did not wait for the newer process to hand back:\n%s\nbefore:\n%s", ns.state(t), adopted)
		}
		now = now.Add(time.Minute)
		if repairFails(older) {
			t.Error("repair failed")
		}
		if got := ns.state(t); got != before {
			t.Errorf("the older process has:\n%s\nbefore:\n%s", got, before)
		}
	})
}

// The predecessor ends after HandBack found its claim and before HandBack writes the
// mark. It has read another mark and removed nothing, so the newer process must
// remove the object.
func TestPredecessorEndsMeanwhile(t *testing.T) {
	ns := newNamespace(t)
	older, newer := newHost(t, ns.config(onLo, "g1")), newHost(t, ns.config(onLo, "g2"))
	must(t, older.ensureBoth)
	must(t, newer.ensureBoth)
	for _, tt := range []struct {
		claim *owner.Claim
		end   func(context.Context) error
	}{
		{newer.Addresses.claim, older.Addresses.Remove}, {newer.Rules.claim, older.Rules.Remove},
	} {
		kept, err := tt.claim.HandBack(owner.MarkOf("g1"), func() error { return tt.end(t.Context()) })
		if kept || err != nil {
			t.Errorf("handed back to a process that ended: %t, %v", kept, err)
		}
	}
}

// A newer process with other addresses deletes those that it added. The older
// one restores those that the newer one deleted.
func TestHandsBackOtherAddresses(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older := newHost(t, ns.config(m, "g1"))
		must(t, older.ensureBoth)
		before := ns.state(t)
		cfg := ns.config(m, "g2")
		cfg.Addrs = []netip.Addr{nstest.LocalIPs[0], netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:53::11")}
		newer := newHost(t, cfg)
		must(t, newer.ensureBoth)
		must(t, newer.removeBoth)
		for _, added := range cfg.Addrs[1:] {
			if ns.HasAddr(t, added) {
				t.Errorf("%s was left", added)
			}
		}
		if !ns.HasAddr(t, nstest.LocalIPs[0]) {
			t.Errorf("%s was removed", nstest.LocalIPs[0])
		}
		if repairFails(older) {
			t.Error("repair failed")
		}
		if got := ns.state(t); got != before {
			t.Errorf("the older process has:\n%s\nbefore:\n%s", got, before)
		}
	})
}

// The older process's Watch repairs again after the hand-back. First it repairs the
// changes of the newer process.
func TestWatchResumes(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg, reported := ns.config(m, "g1"), make(repairs, 100)
		cfg.Logger = slog.New(reported)
		cfg.SyncInterval = time.Hour // only notifications cause a repair
		older := newHost(t, cfg)
		must(t, older.ensureBoth)
		before := ns.state(t)
		other := ns.config(m, "g2")
		other.Addrs = nstest.LocalIPs[:1]
		newer := newHost(t, other)
		must(t, newer.ensureBoth)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- older.Watch(ctx) }()
		for range 2 { // addresses and rules
			reported.wait(t, "another process owns the network setup now")
		}
		must(t, newer.removeBoth)
		reported.waitRestored(t, older)
		if got := ns.state(t); got != before {
			t.Errorf("restored to:\n%s\nwant:\n%s", got, before)
		}
		for _, d := range drifts {
			if d.link && m.name == "lo" {
				continue
			}
			check(t, d.do(ns, ns.existingCarrier(t, m)))
			reported.waitRestored(t, older)
		}
		cancel()
		check(t, <-done)
	})
}

// wait waits for a message.
func (r repairs) wait(t *testing.T, message string) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case got := <-r:
			if strings.HasPrefix(got, message) {
				return
			}
		case <-deadline.C:
			t.Fatalf("%q was not logged", message)
		}
	}
}

// The older process ends while the newer one sets up. The setup of the newer one
// stays, whichever acts first.
func TestRemoveDuringEnsure(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older := newHost(t, ns.config(m, "g0"))
		must(t, older.Addresses.Ensure)
		for i := range 50 {
			newer := newHost(t, ns.config(m, fmt.Sprintf("g%d", i+1)))
			ended := make(chan error, 1)
			go func() { ended <- older.Addresses.Remove(context.Background()) }()
			must(t, newer.Addresses.Ensure)
			check(t, <-ended)
			s, err := newer.Status(t.Context())
			check(t, err)
			if slices.ContainsFunc(s.Addresses, func(a AddressStatus) bool { return a.Problem != "" }) {
				t.Fatalf("in round %d: %+v", i, s)
			}
			check(t, older.Close())
			older = newer
		}
	})
}
