package test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestCtrlC lets nodens add its addresses. After SIGINT the host is as before,
// also after SIGKILL, a new start and SIGINT.
func TestCtrlC(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	node := c.node
	const both = "169.254.20.11,fd00:20::11"
	waitForRoute(t, node, "local fd00:1::1 ")
	before := hostState(t, node)
	start := func() *lab.Daemon {
		t.Helper()
		return lab.StartDaemon(t, lab.DaemonOptions{
			Binary: buildRace.Path(t), Netns: node, Args: []string{"-localip", both},
			Corefile: ". {\n errors\n bind 169.254.20.11 fd00:20::11\n forward . 10.1.1.2\n}",
		})
	}
	serves := func() {
		t.Helper()
		for _, addr := range []string{"169.254.20.11:53", "[fd00:20::11]:53"} {
			r := node.Ask(t, "udp", addr, lab.Query("www.example.org.", dns.TypeA))
			if got := lab.Data(r, dns.TypeA); len(got) != 1 {
				t.Errorf("%s: %s %v", addr, dns.RcodeToString[r.Rcode], got)
			}
		}
		for _, ip := range strings.Split(both, ",") {
			if !strings.Contains(hostState(t, node), ip) {
				t.Errorf("%s is not on the host while nodens runs", ip)
			}
		}
	}

	d := start()
	serves()
	d.Signal(t, syscall.SIGINT)
	if status := d.Wait(t); status != 0 {
		t.Errorf("status %d after SIGINT", status)
	}
	compareState(t, "after SIGINT", before, hostState(t, node))

	d = start()
	d.Kill()
	d = start()
	serves()
	d.Signal(t, syscall.SIGINT)
	d.Wait(t)
	compareState(t, "after SIGKILL, a start and SIGINT", before, hostState(t, node))
}

// hostState is the output of the tools: links, addresses, routes, rules and
// netfilter of the namespace.
func hostState(t *testing.T, n *lab.Netns) string {
	t.Helper()
	var all strings.Builder
	for _, args := range [][]string{
		{"ip", "-details", "link"}, {"ip", "addr"},
		{"ip", "-4", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"},
		{"ip", "-4", "rule"}, {"ip", "-6", "rule"}, {"nft", "list", "ruleset"},
	} {
		lab.NeedTools(t, args[0])
		out, errs, status := lab.Command{Netns: n, Args: args}.Output(t)
		if status != 0 {
			t.Fatalf("%v: status %d: %s", args, status, errs)
		}
		all.WriteString("$ " + strings.Join(args, " ") + "\n" + out)
	}
	return all.String()
}

// waitForRoute waits for a local IPv6 route: the kernel adds it some time after the
// address.
func waitForRoute(t *testing.T, n *lab.Netns, want string) {
	t.Helper()
	for end := time.Now().Add(lab.QueryTimeout); ; time.Sleep(5 * time.Millisecond) {
		out, errs, status := lab.Command{Netns: n, Args: []string{"ip", "-6", "route", "show", "table", "local"}}.Output(t)
		if strings.Contains(out, want) {
			return
		}
		if status != 0 || time.Now().After(end) {
			t.Fatalf("no route %q, status %d: %s%s", want, status, out, errs)
		}
	}
}

func compareState(t *testing.T, when, before, after string) {
	t.Helper()
	if before != after {
		t.Errorf("%s the host has changed.\nbefore:\n%s\nafter:\n%s", when, before, after)
	}
}
