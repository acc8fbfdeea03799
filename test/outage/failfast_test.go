package outage

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// fault is what happens to CoreDNS and the packets to it.
type fault struct {
	name    string
	delay   bool          // every reply after 2.5 s
	rule    string        // of nftables for input packets, which drops them silently; empty: none
	restart time.Duration // CoreDNS is away that long, without ICMP errors; 0: never
	tcp     bool          // the lookups go over TCP only
	full    bool          // only with -full
	rate    int           // lookups a second; 0: 100
}

// Rules of nftables. The question of a DNS message over UDP begins 20 bytes after the
// beginning of the UDP header.
const (
	halfLost = "udp dport 53 ip daddr 10.53.0.1 numgen random mod 2 0 drop"
	noProbes = "udp dport 53 ip daddr 10.53.0.1 @th,160,24 0x000002 drop" // NS of the root
)

var faults = []fault{
	{name: "50% loss", rule: halfLost, rate: 600}, // chance alone changes the share by less than 0.4 points
	{name: "2.5 s delay", delay: true},
	{name: "2.5 s delay, TCP", delay: true, tcp: true, full: true},
	{name: "restart of 1 s", restart: time.Second, full: true},
	{name: "restart of 5 s", restart: 5 * time.Second},
	{name: "restart of 10 s", restart: 10 * time.Second, full: true},
	{name: "restart of 5 s, no probes", restart: 5 * time.Second, rule: noProbes},
	{name: "restart of 5 s, TCP", restart: 5 * time.Second, tcp: true},
	{name: "no probes", rule: noProbes, full: true},
}

// TestFailFastCostsNoAnswers runs nodens with and without fail-fast at the same time,
// with one CoreDNS as upstream. The share of answered lookups with it is at most one
// percentage point lower. Without max_fails there is no fail-fast.
func TestFailFastCostsNoAnswers(t *testing.T) {
	lab.NeedTools(t, "nft")
	for _, f := range faults {
		if f.full && !*full {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var fast, plain tally
			saw := false
			for range 3 { // a pause of the machine may hit only one of the two: then count again
				a, b, outage := f.run(t)
				fast.add(a)
				plain.add(b)
				t.Logf("%.2f%% of %d answered, %.2f%% without fail-fast; outage %v", fast.good(), fast.sent, plain.good(), outage)
				saw = saw || outage
				if (fast.good() >= plain.good()-1 || !saw) && (saw || f.restart < 5*time.Second) {
					return
				}
			}
			t.Errorf("%.2f%% answered, %.2f%% without fail-fast; outage seen: %v", fast.good(), plain.good(), saw)
		})
	}
}

// run returns the results with fail-fast and without, and whether fail-fast saw an
// outage: otherwise it did nothing.
func (f fault) run(t *testing.T) (fast, plain tally, outage bool) {
	n := lab.NewNetns(t, "node")
	n.AddAddrs(t, "lo", strings.TrimSuffix(upstream, ":53")+"/32")
	core := startCoreDNS(t, n, f.delay)
	fastAddr, plainAddr := "127.0.0.1:53", "127.0.0.2:53"
	d := f.startNodens(t, n, fastAddr, "")
	f.startNodens(t, n, plainAddr, "max_fails 0\n")
	if f.rule != "" {
		n.Nft(t, "add table ip faults; add chain ip faults in { type filter hook input priority 0; }; add rule ip faults in "+f.rule)
	}
	stop := make(chan struct{})
	var work sync.WaitGroup
	for addr, result := range map[string]*tally{fastAddr: &fast, plainAddr: &plain} {
		c := newClientOf(t, n, addr, 0, typeA, func(seq int) string { return fmt.Sprintf("n%d.example", seq) })
		work.Go(func() {
			c.run(cmp.Or(f.rate, 100), stop)
			*result = c.tally
		})
	}
	time.Sleep(2 * time.Second)
	if f.restart > 0 {
		n.Nft(t, "add table ip away; add chain ip away in { type filter hook input priority 0; }; add rule ip away in ip daddr 10.53.0.1 drop")
		back := time.Now().Add(f.restart)
		core.Kill()
		startCoreDNS(t, n, f.delay) // a slow start does not lengthen the restart
		time.Sleep(time.Until(back))
		n.Nft(t, "delete table ip away")
	}
	wait := 6 * time.Second
	if *full {
		wait = 20 * time.Second
	}
	time.Sleep(wait)
	close(stop)
	work.Wait()
	return fast, plain, strings.Contains(d.Err.Text(), "every upstream of the zone is down")
}

// startCoreDNS starts the upstream, which answers every A query.
func startCoreDNS(t *testing.T, n *lab.Netns, delay bool) *lab.Process {
	t.Helper()
	plugin := "template IN A {\n answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n"
	if delay {
		plugin = "erratic {\n drop 0\n truncate 0\n delay 1 2500ms\n}\n"
	}
	corefile := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), ". {\n bind 10.53.0.1\n "+plugin+"}\n")
	p := lab.Command{Netns: n, Args: []string{lab.CoreDNS(t), "-conf", corefile}}.Start(t)
	p.Out.WaitFor(t, 0, `CoreDNS-`)
	return p
}

// startNodens starts a nodens on address. option is one of forward, or empty.
func (f fault) startNodens(t *testing.T, n *lab.Netns, address, option string) *lab.Process {
	t.Helper()
	if f.tcp {
		option += "force_tcp\n"
	}
	corefile := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"),
		". {\n bind "+strings.TrimSuffix(address, ":53")+"\n forward . "+upstream+" {\n "+option+"}\n}\n")
	d := lab.Command{Netns: n, Args: []string{nodens.Path(t), "-conf", corefile, "-clients", "all"}}.Start(t)
	d.Out.WaitFor(t, 0, ` listens on `)
	return d
}
