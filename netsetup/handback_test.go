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
)

// state is what a process would miss or find changed, handles apart.
func (ns *namespace) state(t *testing.T) string {
	t.Helper()
	h := newHost(t, Config{NetNS: ns.fd})
	return ns.links(t) + ns.addrState(t) + h.ruleState(t)
}

// deletions records from now on. The function returns the links and addresses
// that were deleted until its call.
func (ns *namespace) deletions(t *testing.T) func() []string {
	t.Helper()
	h := newHost(t, Config{NetNS: ns.fd})
	conn, err := h.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	check(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return func() (gone []string) {
		t.Helper()
		const last = "192.0.2.99/32" // notifications come in order
		lo := ns.addTo(t, "lo", last)
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
						check(t, ns.delAddr(lo, last))
						return gone
					}
				}
			}
		}
	}
}

// The newer process ends first: the older one gets back what it had, and nothing
// of it was gone in between.
func TestHandsBack(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		clean := ns.snapshot(t)
		cfg := ns.config(m, "g1")
		cfg.Addrs = append(slices.Clone(services), bothFamilies...)
		older := newHost(t, cfg)
		must(t, older.ensureBoth)
		before, gone := ns.state(t), ns.deletions(t)
		for _, generation := range []string{"g2", "g3"} {
			cfg.Generation = generation
			newer := newHost(t, cfg)
			must(t, newer.ensureBoth)
			if ns.state(t) == before {
				t.Fatal("the newer one adopted nothing")
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
			t.Errorf("deleted on the way: %v", d)
		}
		must(t, older.removeBoth)
		if got := ns.snapshot(t); got != clean {
			t.Errorf("the older one left:\n%s\nwant:\n%s", got, clean)
		}
	})
}

// Who does not want the set-up any more gets nothing back, whichever way it
// ended: the kernel does as much for a killed process as Close.
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

// A newer process that is killed hands nothing back, but its marks keep the
// older one from nothing either.
func TestTakesBackFromKilled(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older := newHost(t, ns.config(m, "g1"))
		must(t, older.ensureBoth)
		before := ns.state(t)
		cfg := ns.config(m, "g2")
		cfg.Addrs = []netip.Addr{bothFamilies[0], netip.MustParseAddr("fd00:53::11")}
		newer := newHost(t, cfg)
		must(t, newer.ensureBoth)
		check(t, newer.Close())
		adopted := ns.state(t)
		if older.repair(true, true) || ns.state(t) != adopted {
			t.Errorf("did not wait for the newer one to hand back:\n%s\nbefore:\n%s", ns.state(t), adopted)
		}
		older.endsWithin = 0
		if older.repair(true, true) {
			t.Error("repair failed")
		}
		if got := ns.state(t); got != before {
			t.Errorf("the older one has:\n%s\nbefore:\n%s", got, before)
		}
	})
}

// The predecessor ends between the look at its presence and the mark: it has
// read a foreign mark, so the newer one removes.
func TestPredecessorEndsMeanwhile(t *testing.T) {
	ns := newNamespace(t)
	older, newer := newHost(t, ns.config(modes[1], "g1")), newHost(t, ns.config(modes[1], "g2"))
	must(t, older.ensureBoth)
	must(t, newer.ensureBoth)
	for object, end := range map[string]func(context.Context) error{
		objectAddresses: older.RemoveAddresses, objectRules: older.RemoveRules,
	} {
		kept, err := newer.handedBack(object, markOf("g1"), func() error { return end(t.Context()) })
		if kept || err != nil {
			t.Errorf("%s handed to nobody: %t, %v", object, kept, err)
		}
	}
}

// A newer process with other addresses takes along what it added; what it
// dropped the older one puts back.
func TestHandsBackOtherAddresses(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older := newHost(t, ns.config(m, "g1"))
		must(t, older.ensureBoth)
		before := ns.state(t)
		cfg := ns.config(m, "g2")
		cfg.Addrs = []netip.Addr{bothFamilies[0], netip.MustParseAddr("169.254.20.11"), netip.MustParseAddr("fd00:53::11")}
		newer := newHost(t, cfg)
		must(t, newer.ensureBoth)
		must(t, newer.removeBoth)
		for _, added := range cfg.Addrs[1:] {
			if ns.hasAddr(t, added) {
				t.Errorf("%s was left", added)
			}
		}
		if !ns.hasAddr(t, bothFamilies[0]) {
			t.Errorf("%s was removed", bothFamilies[0])
		}
		if older.repair(true, true) {
			t.Error("repair failed")
		}
		if got := ns.state(t); got != before {
			t.Errorf("the older one has:\n%s\nbefore:\n%s", got, before)
		}
	})
}

// The older process's Watch, which stands down for the newer one, repairs again
// once it has the set-up back: first what the newer one had otherwise.
func TestWatchResumes(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		cfg, reported := ns.config(m, "g1"), make(repairs, 100)
		cfg.Logger = slog.New(reported)
		cfg.SyncInterval = time.Hour // so that only notifications can cause a repair
		older := newHost(t, cfg)
		must(t, older.ensureBoth)
		before := ns.state(t)
		other := ns.config(m, "g2")
		other.Addrs = bothFamilies[:1]
		newer := newHost(t, other)
		must(t, newer.ensureBoth)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- older.Watch(ctx) }()
		for range 2 { // objects
			reported.await(t, "another process keeps the network setup now")
		}
		must(t, newer.removeBoth)
		reported.restored(t, older)
		if got := ns.state(t); got != before {
			t.Errorf("restored to:\n%s\nwant:\n%s", got, before)
		}
		for _, d := range drifts {
			if d.link && m.name == "lo" {
				continue
			}
			check(t, d.do(ns, ns.existingCarrier(t, m)))
			reported.restored(t, older)
		}
		cancel()
		check(t, <-done)
	})
}

// await waits for a message.
func (r repairs) await(t *testing.T, message string) {
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
			t.Fatalf("%q was not said", message)
		}
	}
}

// The older process ends while the newer one sets up: whichever is first, what
// the newer one has set up stays.
func TestEndMeetsSetUp(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		older := newHost(t, ns.config(m, "g0"))
		must(t, older.EnsureAddresses)
		for i := range 50 {
			newer := newHost(t, ns.config(m, fmt.Sprintf("g%d", i+1)))
			ended := make(chan error, 1)
			go func() { ended <- older.RemoveAddresses(context.Background()) }()
			must(t, newer.EnsureAddresses)
			check(t, <-ended)
			s, err := newer.Status(t.Context())
			check(t, err)
			if slices.ContainsFunc(s.Addresses, func(a AddressStatus) bool { return a.Problem != "" }) {
				t.Fatalf("in round %d: %v", i, s)
			}
			check(t, older.Close())
			older = newer
		}
	})
}
