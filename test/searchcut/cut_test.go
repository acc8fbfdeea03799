package searchcut

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	coreDNS = "127.0.0.53:53"
	ours    = "127.0.0.11:53"
	metrics = "127.0.0.11:9253"
	domain  = ".cluster.local."
)

// cluster is nodens in front of CoreDNS in front of an API server.
type cluster struct {
	*api
	*lab.Netns
	daemon *lab.Daemon
}

// newCluster starts all. options are those of the kubernetes plugin, and more are other
// directives of CoreDNS.
func newCluster(t *testing.T, options, more string) *cluster {
	t.Helper()
	binary := lab.CoreDNS(t)
	c := &cluster{api: newAPI(), Netns: lab.NewNetns(t, "node")}
	c.populate()
	l := c.Listen(t, "tcp", "127.0.0.1:8001")
	server := &http.Server{Handler: c.api}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), fmt.Sprintf(`. {
    bind 127.0.0.53
    %s
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint http://127.0.0.1:8001
        ttl 5
        %s
    }
    ready 127.0.0.53:8181
}
`, more, options))
	p := lab.Command{Netns: c.Netns, Args: []string{binary, "-conf", conf}}.Start(t)
	p.Out.WaitFor(t, 0, `^CoreDNS-`)
	c.await(t, "CoreDNS to have the Services", func() bool { return c.asked(t, coreDNS, "web.default.svc", dns.TypeA) == "NOERROR 10.96.0.1" })
	c.daemon = lab.StartDaemon(t, lab.DaemonOptions{Binary: nodens.Path(t), Netns: c.Netns, Corefile: `cluster.local {
    bind 127.0.0.11
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    forward . 127.0.0.53
    prometheus 127.0.0.11:9253
}
`})
	return c
}

// populate makes the first objects.
func (c *cluster) populate() {
	for _, n := range []string{"default", "kube-system", "going"} {
		c.namespace(n)
	}
	c.service("default", "web", "10.96.0.1")
	c.endpoints("default", "web", "", "10.0.0.1")
	c.service("default", "db", "None")
	c.endpoints("default", "db", "db-0", "10.0.0.2", "db-1", "10.0.0.3")
	c.service("default", "empty", "None")
	c.service("default", "idle", "10.96.0.2")
	c.service("default", "ext", "target.example")
	c.service("going", "web", "10.96.0.3")
	c.endpoints("going", "web", "", "10.0.0.4")
}

// asked is the rcode and the data of a server's answer, or an error.
func (c *cluster) asked(t *testing.T, server, name string, qtype uint16) string {
	t.Helper()
	r, err := c.TryAsk(t, "udp", server, lab.Query(name+domain, qtype))
	if err != nil {
		return err.Error() // and the caller asks again
	}
	data := lab.Data(r, qtype)
	slices.Sort(data)
	if qtype == dns.TypeSRV && len(r.Answer) > 0 {
		data = []string{fmt.Sprint(len(r.Answer), " records")}
	}
	return strings.TrimSpace(dns.RcodeToString[r.Rcode] + " " + strings.Join(data, " "))
}

func (c *cluster) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	began := time.Now()
	for ; !done(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("waited in vain for %s", what)
		}
	}
	t.Logf("%s: after %v", what, time.Since(began).Round(10*time.Millisecond))
}

// sum is the value of a metric of nodens.
func (c *cluster) sum(t *testing.T, name string) float64 {
	t.Helper()
	v, _ := c.Scrape(t, metrics).Sum(name, "zone=cluster.local.")
	return v
}

// names are those with an answer, in CoreDNS's various ways, and some without.
func names() []string {
	return []string{
		"web.default.svc", "_http._tcp.web.default.svc", "10-0-0-1.web.default.svc", "db.default.svc", "db-0.db.default.svc",
		"_http._tcp.db.default.svc", "empty.default.svc", "idle.default.svc", "ext.default.svc", "default.svc", "svc",
		"kube-system.svc", "web.going.svc", "going.svc", "10-0-0-1.default.pod", "pod", "default.pod", "dns-version", "ns.dns", "dns",
		"gone.default.svc", "x.web.default.svc", "x.db.default.svc", "_http._tcp.gone.default.svc", "gone.svc", "web.gone.svc",
	}
}

// search looks external names up below every search domain, again and again, so that
// cuts are found and stay in use, until the end of the test.
func (c *cluster) search(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, s := range []string{".default.svc", ".kube-system.svc", ".going.svc", ".coming.svc", ".svc", ""} {
				for _, tld := range []string{"com", "org", "db", "empty", "stateful"} {
					q := lab.Query(fmt.Sprintf("host%d.%s%s%s", i%7, tld, s, domain), []uint16{dns.TypeA, dns.TypeAAAA}[i%2])
					if r, err := c.TryAsk(t, "udp", ours, q); err == nil && r.Rcode == dns.RcodeSuccess {
						t.Errorf("%s: %s", q.Question[0].Name, dns.RcodeToString[r.Rcode])
					}
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// TestNoWrongDenial compares nodens with CoreDNS while the cluster changes. A name that
// comes must be visible, though names around it are denied by cuts all the time.
func TestNoWrongDenial(t *testing.T) {
	for _, options := range []string{"pods insecure", "pods disabled\n        ignore empty_service"} {
		t.Run(strings.ReplaceAll(options, "\n        ", " "), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, options, "")
			c.search(t)
			c.await(t, "cuts", func() bool { return c.sum(t, "nodens_search_cut_answers_total") > 100 })
			c.compare(t)
			c.come(t, "a namespace", func() {
				c.namespace("coming")
				c.service("coming", "web", "10.96.0.4")
				c.endpoints("coming", "web", "", "10.0.0.10")
			}, "web.coming.svc", dns.TypeA)
			c.come(t, "a Service called com", func() { c.service("default", "com", "None"); c.endpoints("default", "com", "www", "10.0.0.5") }, "www.com.default.svc", dns.TypeA)
			c.come(t, "the port of a new Service", func() { c.service("default", "gone", "10.96.0.5"); c.endpoints("default", "gone", "", "10.0.0.6") }, "_http._tcp.gone.default.svc", dns.TypeSRV)
			c.come(t, "the first pod of a headless Service", func() { c.endpoints("default", "empty", "empty-0", "10.0.0.7") }, "empty-0.empty.default.svc", dns.TypeA)
			c.come(t, "the first pod of a new StatefulSet", func() {
				c.service("default", "stateful", "None")
				c.endpoints("default", "stateful", "stateful-0", "10.0.0.8")
			}, "stateful-0.stateful.default.svc", dns.TypeA)
			c.come(t, "a pod's second", func() { c.endpoints("default", "empty", "empty-0", "10.0.0.7", "empty-1", "10.0.0.9") }, "empty-1.empty.default.svc", dns.TypeA)
			c.remove("services", "going", "web")
			c.remove("endpointslices", "going", "web-1")
			c.remove("namespaces", "", "going")
			c.await(t, "the end of a namespace", func() bool { return c.asked(t, ours, "web.going.svc", dns.TypeA) == "NXDOMAIN" })
			c.come(t, "its return", func() {
				c.namespace("going")
				c.service("going", "web", "10.96.0.6")
				c.endpoints("going", "web", "", "10.0.0.11")
			}, "web.going.svc", dns.TypeA)
			c.compare(t)
			if c.sum(t, "nodens_search_cut_off") != 0 {
				t.Error("cuts are off")
			}
			t.Logf("%v answers from cuts, %v queries for them, %v contradictions", c.sum(t, "nodens_search_cut_answers_total"),
				c.sum(t, "nodens_search_cut_queries_total"), c.sum(t, "nodens_search_cut_contradictions_total"))
		})
	}
}

// compare waits until nodens gives the same answers as CoreDNS. Only answers that were
// in the cache may differ at first.
func (c *cluster) compare(t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	for _, name := range names() {
		all.Go(func() {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT} {
				c.awaitSame(t, name, qtype)
			}
		})
	}
	all.Wait()
}

func (c *cluster) awaitSame(t *testing.T, name string, qtype uint16) {
	t.Helper()
	var our, their string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if our, their = c.asked(t, ours, name, qtype), c.asked(t, coreDNS, name, qtype); our == their {
			return
		}
	}
	t.Errorf("%s %s: %s, but CoreDNS says %s", name, dns.TypeToString[qtype], our, their)
}

// come changes the cluster and waits until nodens has what CoreDNS has for name, which
// no client has asked for before. A denial that nodens sends meanwhile must have a TTL
// of at most 5 s.
func (c *cluster) come(t *testing.T, what string, appear func(), name string, qtype uint16) {
	t.Helper()
	appear()
	c.await(t, what+" in CoreDNS", func() bool { return strings.HasPrefix(c.asked(t, coreDNS, name, qtype), "NOERROR ") })
	c.await(t, what, func() bool {
		r, err := c.TryAsk(t, "udp", ours, lab.Query(name+domain, qtype))
		if err != nil {
			return false
		}
		if r.Rcode == dns.RcodeNameError && r.Ns[0].Header().Ttl > 5 {
			t.Fatalf("%s: %v", name, r)
		}
		return len(r.Answer) > 0
	})
}

// TestBrokenUpstream has a CoreDNS that answers a name below one that it denies.
func TestBrokenUpstream(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "pods insecure", `template IN A cluster.local {
        match ^synth\.
        answer "{{ .Name }} 1 IN A 192.0.2.1"
        fallthrough
    }`)
	c.search(t)
	i := 0
	c.await(t, "the contradiction", func() bool {
		i++
		c.asked(t, ours, "synth.org.default.svc", dns.TypeA)
		c.asked(t, ours, fmt.Sprintf("other%d.org.default.svc", i), dns.TypeA)
		return c.sum(t, "nodens_search_cut_off") == 1
	})
	if got := c.asked(t, ours, "synth.org.default.svc", dns.TypeA); got != "NOERROR 192.0.2.1" {
		t.Errorf("synth.org.default.svc: %s", got)
	}
	if c.sum(t, "nodens_search_cut_contradictions_total") == 0 {
		t.Error("no contradiction is counted")
	}
}
