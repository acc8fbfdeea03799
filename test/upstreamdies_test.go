package test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// stubTimeout is the timeout of the resolvers of glibc, musl and Go for a
// nameserver. SERVFAIL must come before.
const stubTimeout = 5 * time.Second

// TestUpstreamDies kills and restarts a real upstream. In between, nodens returns
// SERVFAIL with an Extended DNS Error in time for the stubs. Afterwards it
// answers again without a restart.
func TestUpstreamDies(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ name, options string }{
		{"udp", ""},
		{"tcp", "force_tcp"},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			n, ip := c.addUpstream(t)
			resolver := lab.StartDnsmasq(t, n, ip, wildcardZone)
			c.start(t, `. {
				errors
				cache 600
				bind `+localIP+`
				forward . `+ip+` {
					max_fails 1
					`+s.options+`
				}
				`+admin+`
			}`)
			answers(t, c, "before")
			to := "to=" + ip + ":53"
			c.node.WaitForMetric(t, metrics, 1, healthy, to)

			resolver.Kill()
			failsInTime(t, c, "refused")
			c.node.WaitForMetric(t, metrics, 0, healthy, to)
			n.SetLink(t, "eth0", false)
			failsInTime(t, c, "unreachable")
			answers(t, c, "before") // from the cache
			n.SetLink(t, "eth0", true)

			resolver = lab.StartDnsmasq(t, n, ip, wildcardZone)
			c.node.WaitForMetric(t, metrics, 1, healthy, to) // through health checks alone
			answers(t, c, "after")
			resolver.SignalAll(t, syscall.SIGSTOP)
			failsInTime(t, c, "silent")
			resolver.SignalAll(t, syscall.SIGCONT)
			c.node.WaitForMetric(t, metrics, 1, healthy, to)
			answers(t, c, "thawed")
			waitForRecovery(t, c, "refused") // which was cached as a failure
		})
	}
	t.Run("one of two", testFailover)
}

// healthy is the gauge that is 1 for a healthy upstream.
const healthy = "nodens_upstream_healthy"

// wildcardZone makes dnsmasq answer every name below lab.example.
const wildcardZone = "local-ttl=600\naddress=/lab.example/192.0.2.1\n"

func ask(t *testing.T, c *cluster, label string) *dns.Msg {
	t.Helper()
	return c.pod.Ask(t, "udp", localAddr, lab.Query(label+".lab.example.", dns.TypeA))
}

func answers(t *testing.T, c *cluster, label string) {
	t.Helper()
	r := ask(t, c, label)
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("%s: %s %v", label, dns.RcodeToString[r.Rcode], got)
	}
}

// failsInTime sends one query over UDP, one over TCP and one without OPT, all at
// once. It expects SERVFAIL before a stub's timeout, with an EDE if the query has
// OPT.
func failsInTime(t *testing.T, c *cluster, label string) {
	t.Helper()
	t.Run(label, func(t *testing.T) {
		for i, opts := range []string{"+notcp", "+tcp", "+noedns"} {
			t.Run(opts, func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprintf("%s%d.lab.example", label, i)
				if i == 0 {
					name = label + ".lab.example"
				}
				// dig takes its timeout in whole seconds.
				d := dig(t, c.pod, localIP, name, "A", fmt.Sprintf("+timeout=%d", int(stubTimeout/time.Second)), opts)
				if d.Status != "SERVFAIL" {
					t.Errorf("%s, want SERVFAIL:\n%s", d.Status, d.Text)
				}
				// No Reachable Authority, Network Error.
				ede := strings.Contains(d.Text, "; EDE: 22") || strings.Contains(d.Text, "; EDE: 23")
				if want := opts != "+noedns"; ede != want {
					t.Errorf("EDE 22 or 23 in the reply: %t, want %t:\n%s", ede, want, d.Text)
				}
			})
		}
	})
}

// waitForRecovery sends queries for a name with a cached failure until it gets an
// answer.
func waitForRecovery(t *testing.T, c *cluster, label string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.QueryTimeout)
	for ask(t, c, label).Rcode != dns.RcodeSuccess {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s is still not answered", label)
		}
	}
}

// testFailover kills one of two upstreams. No client gets SERVFAIL, whether the
// dead upstream refuses packets or is silent.
func testFailover(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n1, ip1 := c.addUpstream(t)
	n2, ip2 := c.addUpstream(t)
	first := lab.StartDnsmasq(t, n1, ip1, wildcardZone)
	lab.StartDnsmasq(t, n2, ip2, wildcardZone)
	c.start(t, `. {
		errors
		bind `+localIP+`
		forward . `+ip1+` `+ip2+` {
			policy round_robin
		}
		`+admin+`
	}`)
	burst := func(when string, n int) {
		t.Helper()
		for i := range n {
			answers(t, c, fmt.Sprintf("%s%d", when, i))
		}
	}
	burst("both", 8)
	first.Kill()
	burst("refusing", 8)
	n1.SetLink(t, "eth0", false)
	burst("silent", 4)
	c.node.WaitForMetric(t, metrics, 0, healthy, "to="+ip1+":53")
	c.node.WaitForMetric(t, metrics, 1, healthy, "to="+ip2+":53")

	n1.SetLink(t, "eth0", true)
	lab.StartDnsmasq(t, n1, ip1, wildcardZone)
	c.node.WaitForMetric(t, metrics, 1, healthy, "to="+ip1+":53")
	before, _ := c.node.Scrape(t, metrics).Sum("coredns_forward_requests_total", "to="+ip1+":53")
	burst("again", 8)
	after, _ := c.node.Scrape(t, metrics).Sum("coredns_forward_requests_total", "to="+ip1+":53")
	if after <= before {
		t.Errorf("no queries to the restarted upstream: %v before, %v after", before, after)
	}
}
