package test

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestPublishedCorefiles starts nodens with Corefiles like those of real clusters
// and sends queries for every zone to every address.
func TestPublishedCorefiles(t *testing.T) {
	t.Parallel()
	for _, s := range []published{
		{name: "addon", bind: []string{localIP, "10.96.0.10"}, health: localIP + ":8080", outside: "udp"},
		{name: "kubespray", bind: []string{"169.254.25.10"}, health: "169.254.25.10:9254", outside: "tcp"},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.test(t)
		})
	}
}

// published is a Corefile in testdata/corefiles and its properties.
type published struct {
	name    string
	bind    []string
	health  string // address
	outside string // how names outside the cluster are resolved
}

func (s published) test(t *testing.T) {
	c := newCluster(t)
	for _, ip := range s.bind {
		if ip != localIP {
			c.node.AddAddrs(t, "lo", ip+"/32")
		}
	}
	inside := startNamed(t, c, "192.0.2.1")  // "CoreDNS", 10.1.1.2
	outside := startNamed(t, c, "192.0.2.2") // the resolver outside the cluster, 10.1.2.2
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: buildRace.Path(t), Netns: c.node,
		Args:  []string{"-hedge=false"}, // the test counts queries, and a reply may be late on a busy machine
		Conf:  filepath.Join("testdata/corefiles", s.name+".corefile"),
		Binds: map[string]string{"/etc/resolv.conf": lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), "nameserver 10.1.2.2\n")},
	})
	for _, ip := range s.bind {
		for _, network := range []string{"udp", "tcp"} {
			askZones(t, c, network, ip+":53")
		}
	}
	checkTransport(t, inside, "tcp", "kubernetes.default.svc.cluster.local.", "1.2.0.192.in-addr.arpa.", "1.0.0.2.ip6.arpa.")
	checkTransport(t, outside, s.outside, "www.example.org.")
	for _, seen := range inside.Seen("www.example.org.") {
		t.Errorf("the cluster's DNS received %v", seen.Msg.Question)
	}
	if status, body := c.node.Get(t, s.health, "/health"); status != http.StatusOK || body != "OK" {
		t.Errorf("health: %d %q", status, body)
	}
	s.checkMetrics(t, c)
	if out := d.Err.Text(); strings.Contains(out, "forwarding loop") {
		t.Errorf("reported a loop without one:\n%s", out)
	}
}

// startNamed starts the next upstream. It answers every A query with the address
// and every PTR query with a name, and denies the rest.
func startNamed(t *testing.T, c *cluster, a string) *lab.Upstream {
	t.Helper()
	n, ip := c.addUpstream(t)
	return lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		switch q.Question[0].Qtype {
		case dns.TypeA:
			return lab.Reply(q, name+" 30 IN A "+a)
		case dns.TypePTR:
			return lab.Reply(q, name+" 30 IN PTR ptr.example.")
		}
		return lab.Denial(q, dns.RcodeNameError, parent(name))
	})
}

// parent is the name without its first label.
func parent(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}

// askZones sends two queries for one name of every zone.
func askZones(t *testing.T, c *cluster, network, addr string) {
	t.Helper()
	for _, q := range []struct {
		name  string
		qtype uint16
		want  []string
	}{
		{"kubernetes.default.svc.cluster.local.", dns.TypeA, []string{"192.0.2.1"}},
		{"1.2.0.192.in-addr.arpa.", dns.TypePTR, []string{"ptr.example."}},
		{"1.0.0.2.ip6.arpa.", dns.TypePTR, []string{"ptr.example."}},
		{"www.example.org.", dns.TypeA, []string{"192.0.2.2"}},
	} {
		for range 2 {
			r := c.node.Ask(t, network, addr, lab.Query(q.name, q.qtype))
			if got := lab.Data(r, q.qtype); r.Rcode != dns.RcodeSuccess || !slices.Equal(got, q.want) {
				t.Errorf("%s over %s: %s %v, want %v", q.name, network, dns.RcodeToString[r.Rcode], got, q.want)
			}
		}
	}
}

// checkTransport expects that all queries for the names came over proto, and one
// query per name and address it is cached for.
func checkTransport(t *testing.T, u *lab.Upstream, proto string, names ...string) {
	t.Helper()
	for _, name := range names {
		seen := u.Seen(name)
		if len(seen) != 1 {
			t.Errorf("%s: %d queries, want one, then cache hits", name, len(seen))
		}
		for _, s := range seen {
			if s.Proto != proto {
				t.Errorf("%s: query over %s, want %s", name, s.Proto, proto)
			}
		}
	}
}

// checkMetrics expects CoreDNS's metrics with CoreDNS's labels.
func (s published) checkMetrics(t *testing.T, c *cluster) {
	t.Helper()
	m := c.node.Scrape(t, metrics)
	server := "server=dns://" + s.bind[0] + ":53"
	for _, want := range []struct {
		family string
		labels []string
		least  float64
	}{
		{"coredns_build_info", nil, 1},
		{"coredns_dns_requests_total", []string{server, "zone=cluster.local.", "view=", "proto=udp", "family=1", "type=A"}, 2},
		{"coredns_dns_requests_total", []string{server, "zone=.", "proto=tcp"}, 2},
		{"coredns_dns_responses_total", []string{server, "zone=cluster.local.", "rcode=NOERROR", "plugin=forward"}, 1},
		{"coredns_dns_responses_total", []string{server, "zone=cluster.local.", "rcode=NOERROR", "plugin=cache"}, 3},
		{"coredns_dns_request_duration_seconds", []string{server, "zone=in-addr.arpa."}, 4},
		{"coredns_dns_request_size_bytes", []string{server, "zone=ip6.arpa.", "proto=udp"}, 2},
		{"coredns_dns_response_size_bytes", []string{server, "zone=.", "proto=tcp"}, 2},
		{"coredns_cache_hits_total", []string{server, "type=success"}, 12},
		{"coredns_cache_misses_total", []string{server}, 4},
		{"coredns_cache_entries", []string{server, "type=success", "zones=cluster.local."}, 1},
		{"coredns_forward_requests_total", []string{"to=10.1.1.2:53"}, 3},
		{"coredns_forward_responses_total", []string{"to=10.1.2.2:53", "rcode=NOERROR"}, 1},
		{"coredns_forward_request_duration_seconds", []string{"to=10.1.1.2:53"}, 3},
		{"coredns_panics_total", nil, 0},
		{"nodens_config_last_reload_successful", nil, 1},
		{"go_goroutines", nil, 1},
		{"process_open_fds", nil, 1},
	} {
		if got, ok := m.Sum(want.family, want.labels...); !ok || got < want.least {
			t.Errorf("%s%v is %v (present: %t), want at least %v", want.family, want.labels, got, ok, want.least)
		}
	}
	if n, _ := m.Sum("coredns_panics_total"); n != 0 {
		t.Errorf("%v panics", n)
	}
}
