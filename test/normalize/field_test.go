package normalize

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// fieldName has four dots: with ndots:5 a pod tries the search list first.
const (
	fieldName = "httpd.dnscheck.svc.cluster.local"
	fieldAddr = "10.96.0.77"
	fieldPod  = "search dnscheck.svc.cluster.local svc.cluster.local cluster.local example.com\noptions ndots:5\n"
)

// hostResolver is dnsmasq as the host's resolver. Behind it, another dnsmasq is
// the provider's, with an address for every name below example.com.
type hostResolver struct {
	name     string
	provider string // configuration of the provider's dnsmasq
	config   string // configuration of the host's dnsmasq
	a, aaaa  string // status of the host resolver's replies, which have no records
}

var hostResolvers = []hostResolver{
	{
		// Rebind protection removes the private address from the reply. An
		// address that is known as bogus makes it NXDOMAIN.
		name: "A empty, AAAA NXDOMAIN", a: "NOERROR", aaaa: "NXDOMAIN",
		provider: "address=/example.com/10.9.9.9\naddress=/example.com/2001:db8::bad\n",
		config:   "stop-dns-rebind\nbogus-nxdomain=2001:db8::bad\n",
	},
	{
		name: "both empty", a: "NOERROR", aaaa: "NOERROR",
		provider: "address=/example.com/10.9.9.9\naddress=/example.com/fd00::bad\n",
		config:   "stop-dns-rebind\n",
	},
}

// start runs the pair and returns the address of the host's resolver. It checks
// the replies of the case with dig.
func (h hostResolver) start(t *testing.T, c *cluster) string {
	t.Helper()
	provider, host := c.addServer(t, "provider"), c.addServer(t, "dnsmasq")
	host.netns.Join(t, "out", []string{"10.3.0.1/24"}, provider.netns, "in", []string{"10.3.0.2/24"})
	lab.StartDnsmasq(t, provider.netns, "10.3.0.2", h.provider)
	lab.StartDnsmasq(t, host.netns, host.forNode, "server=10.3.0.2\n"+h.config)
	for qtype, want := range map[string]string{"A": h.a, "AAAA": h.aaaa} {
		status, counts := dig(t, c.node, host.forNode, fieldName+".example.com", qtype)
		if status != want || counts != "ANSWER: 0, AUTHORITY: 0, ADDITIONAL: 0" {
			t.Fatalf("dnsmasq answers %s, %s to %s, want %s without records", status, counts, qtype, want)
		}
	}
	return host.forNode
}

// dig sends one query without EDNS and returns the status and the header's counts
// except the question's.
func dig(t *testing.T, n *lab.Netns, server, name, qtype string) (status, counts string) {
	t.Helper()
	lab.NeedTools(t, "dig")
	args := []string{"dig", "@" + server, "+noedns", "+tries=1", "+timeout=10", name, qtype}
	out, errs, code := lab.Command{Netns: n, Args: args}.Output(t)
	_, after, ok := strings.Cut(out, "status: ")
	if code != 0 || !ok {
		t.Fatalf("%v: status %d\n%s%s", args, code, out, errs)
	}
	status, after, _ = strings.Cut(after, ",")
	_, after, _ = strings.Cut(after, "QUERY: 1, ")
	counts, _, _ = strings.Cut(after, "\n")
	return status, counts
}

// coreDNS answers for the cluster domain: one Service with an IPv4 address.
func coreDNS(q *dns.Msg, _ string) *dns.Msg {
	name := strings.TrimSuffix(dns.CanonicalName(q.Question[0].Name), ".")
	switch {
	case name == fieldName && q.Question[0].Qtype == dns.TypeA:
		return lab.Reply(q, fieldName+". 30 IN A "+fieldAddr)
	case name == fieldName, strings.HasSuffix(fieldName, "."+name): // also for empty non-terminals
		return lab.Denial(q, dns.RcodeSuccess, "cluster.local.")
	}
	return lab.Denial(q, dns.RcodeNameError, "cluster.local.")
}

// fieldClients are the stubs as pods use them. fails lists the host's resolvers with
// which a stub finds the name only if nodens normalises. musl 1.2.3 continues its
// search only if the replies for all types that it requests are NXDOMAIN. That is A
// alone with AF_INET, and with AI_ADDRCONFIG if the pod has no IPv6. (musl 1.1
// stopped at one empty answer in any case.)
func fieldClients(t *testing.T) []fieldClient {
	t.Helper()
	never := func(hostResolver) bool { return false }
	always := func(hostResolver) bool { return true }
	var list []fieldClient
	for _, c := range newClients(t) {
		switch c.name {
		case "musl":
			list = append(list,
				fieldClient{c, func(h hostResolver) bool { return h.aaaa == "NOERROR" }},
				fieldClient{c.with("-4"), always}, fieldClient{c.with("-c"), always})
		case "glibc":
			list = append(list, fieldClient{c, never}, fieldClient{c.with("-4"), never}, fieldClient{c.with("-c"), never})
		case "go", "node-lookup":
			list = append(list, fieldClient{c, never})
		}
	}
	return list
}

type fieldClient struct {
	client
	fails func(hostResolver) bool
}

// with is the client with one more flag.
func (c client) with(flag string) client {
	c.name += " " + flag
	c.args = append(slices.Clone(c.args), flag)
	return c
}

// TestFieldCase is the case from the field: a dnsmasq answers empty for names
// that do not exist. A pod's musl does not find a Service, because its search
// list ends with the host's domain. By default nodens makes the lookup succeed.
func TestFieldCase(t *testing.T) {
	t.Parallel()
	for _, h := range hostResolvers {
		for _, mode := range []string{"off", "default"} {
			t.Run(h.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				testFieldCase(t, h, mode)
			})
		}
	}
}

func testFieldCase(t *testing.T, h hostResolver, mode string) {
	c := newCluster(t)
	withoutIPv6(t, c.pod)
	resolver, cluster := h.start(t, c), c.addServer(t, "coredns")
	startUpstream(t, cluster.netns, coreDNS, cluster.forNode)
	c.start(t, buildRace, "nameserver "+resolver+"\nsearch example.com\n", fieldCorefile(cluster.forNode, mode))
	p := newPod(t, c.pod, "nameserver "+localIP+"\n"+fieldPod)
	for _, f := range fieldClients(t) {
		for _, cache := range []string{"cold", "warm"} {
			got := p.lookup(t, f.client, fieldName)[fieldName]
			found := slices.Equal(got.Data, []string{fieldAddr})
			if want := mode == "default" || !f.fails(h); found != want {
				t.Errorf("%s, %s: %s; found: %t, want %t", f.name, cache, got, found, want)
			}
			if got.Took >= lookupLimit {
				t.Errorf("%s, %s: stalls: %s", f.name, cache, got)
			}
		}
	}
	rewritten, _ := c.node.Scrape(t, metrics).Sum("nodens_normalize_total", "zone=.", "result=rewritten")
	if (rewritten > 0) != (mode == "default") {
		t.Errorf("%v replies counted as rewritten", rewritten)
	}
}

func fieldCorefile(coreDNS, mode string) string {
	normalize := ""
	if mode != "default" {
		normalize = "normalize {\n mode " + mode + "\n}"
	}
	return fmt.Sprintf(`
	cluster.local {
		errors
		cache 30
		bind %[1]s
		forward . %[2]s {
			force_tcp
		}
		%[3]s
	}
	. {
		errors
		cache 30
		bind %[1]s
		forward . /etc/resolv.conf
		%[4]s
	}`, localIP, coreDNS, admin, normalize)
}

// withoutIPv6 turns IPv6 off in a namespace. Then loopback has no IPv6 address
// either, which musl checks for AI_ADDRCONFIG.
func withoutIPv6(t *testing.T, n *lab.Netns) {
	t.Helper()
	err := n.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}
