package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// names are what the clients look up, and the absolute name that they mean.
var names = []struct{ name, absolute string }{
	{"web", "web.default.svc.cluster.local."},
	{"web.default", "web.default.svc.cluster.local."},
	{"web.default.svc.cluster.local", "web.default.svc.cluster.local."},
	{"kubernetes.default.svc.cluster.local.", "kubernetes.default.svc.cluster.local."},
	{"kube-dns.kube-system", "kube-dns.kube-system.svc.cluster.local."},
	{"peers", "peers.default.svc.cluster.local."},
	{"musl-1.peers", "musl-1.peers.default.svc.cluster.local."},
	{"go-2.peers.default.svc", "go-2.peers.default.svc.cluster.local."},
	{"outside", "outside.default.svc.cluster.local."},
	{"www.example.test", "www.example.test."},
	{"v4.example.test", "v4.example.test."},
	{"www.example.test.", "www.example.test."},
	{"none.default", "none.default.svc.cluster.local."},
	{"none.example.test", "none.example.test."},
}

// TestNames compares what each client gets with what CoreDNS answers directly.
func TestNames(t *testing.T) {
	needCluster(t)
	startClients(t)
	waitForDNS(t)
	want := wantedNames(t)
	for _, n := range nodes {
		apply(t, podManifest("names-"+n, "names", n, idle, ""))
	}
	for _, c := range clients {
		pod := "names-" + c.node
		kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout", timeout.String())
		c.wants(t, pod, want)
	}
	t.Logf("%d clients, %d names each", len(clients), len(names))
}

// wantedNames returns what CoreDNS answers for each of the names.
func wantedNames(t *testing.T) map[string]string {
	t.Helper()
	server, want := coreDNS(t), make(map[string]string)
	for _, n := range names {
		want[n.name] = ask(t, server, n.absolute, dns.TypeA, dns.TypeAAAA)
		if none := strings.HasPrefix(n.name, "none."); (want[n.name] == "") != none {
			t.Fatalf("CoreDNS answers %q for %s", want[n.name], n.absolute)
		}
	}
	return want
}

// TestRecords compares nodens with CoreDNS for records that getaddrinfo does not ask
// for.
func TestRecords(t *testing.T) {
	needCluster(t)
	startClients(t)
	waitForDNS(t)
	server := coreDNS(t)
	pod := kubectl(t, "get", "pod", "musl-2", "-o", "jsonpath={.status.podIP}")
	service := kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	for _, q := range []struct {
		name  string
		qtype uint16
		stub  string // what pods look up, after the option for that; empty if they cannot
	}{
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV, "-s _http._tcp.web.default.svc.cluster.local."},
		{"_http._tcp.peers.default.svc.cluster.local.", dns.TypeSRV, "-s _http._tcp.peers.default.svc.cluster.local."},
		{"_ldap._tcp.example.test.", dns.TypeSRV, "-s _ldap._tcp.example.test."},
		{reverse(t, pod), dns.TypePTR, "-x " + pod},
		{reverse(t, service), dns.TypePTR, "-x " + service},
		{reverse(t, "203.0.113.10"), dns.TypePTR, "-x 203.0.113.10"},
		{"outside.default.svc.cluster.local.", dns.TypeCNAME, ""},
		{"dns-version.cluster.local.", dns.TypeTXT, ""},
	} {
		want := ask(t, server, q.name, q.qtype)
		if want == "" {
			t.Errorf("CoreDNS has no %s of %s", dns.TypeToString[q.qtype], q.name)
		}
		for _, node := range nodes {
			out := onNode(t, node, fmt.Sprintf("dig +short +time=10 @%s %s %s", localIP, q.name, dns.TypeToString[q.qtype]))
			if got := sorted(strings.Split(strings.TrimSpace(out), "\n")); got != want {
				t.Errorf("%s %s on node %s: %q, and CoreDNS has %q", q.name, dns.TypeToString[q.qtype], node, got, want)
			}
		}
		if q.stub != "" {
			stubsWant(t, q.stub, q.qtype, want)
		}
	}
}

// stubsWant compares what the stubs get in a pod with the wanted records.
func stubsWant(t *testing.T, args string, qtype uint16, want string) {
	t.Helper()
	records := strings.Fields(want)
	if qtype == dns.TypeSRV {
		records = nil
		for fields := range slices.Chunk(strings.Fields(want), 4) {
			records = append(records, strings.Join(fields, ","))
		}
	}
	for _, stub := range []string{"musl-lookup %s", "glibc-lookup %s", "NODENS_LAB_LOOKUP='%s' go-client"} {
		out := kubectl(t, "exec", "musl-1", "--", "sh", "-c", fmt.Sprintf(stub, args))
		_, l, err := lab.ParseLookup(strings.TrimSpace(out))
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Data {
			l.Data[i] = strings.TrimSuffix(l.Data[i], ".") + "."
		}
		// getnameinfo returns only one of an address's names.
		one := qtype == dns.TypePTR && len(l.Data) == 1 && slices.Contains(records, l.Data[0])
		if !one && !slices.Equal(l.Data, records) {
			t.Errorf("%s: %v, and CoreDNS has %q", fmt.Sprintf(stub, args), l, want)
		}
	}
}

// TestPolicies looks up names in pods with other DNS settings.
func TestPolicies(t *testing.T) {
	needCluster(t)
	const service, outside, short = "web.default.svc.cluster.local", "www.example.test", "web"
	both := []string{"203.0.113.10", "2001:db8::10"}
	startClients(t)
	web := []string{kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")}
	for _, p := range []struct {
		name, spec string
		want       map[string][]string
	}{
		{"default", "  dnsPolicy: Default\n", map[string][]string{outside: both, service: nil}},
		{"hostnetwork", "  dnsPolicy: ClusterFirstWithHostNet\n  hostNetwork: true\n", map[string][]string{outside: both, service: web, short: web}},
		{"none", "  dnsPolicy: None\n  dnsConfig: {nameservers: [\"" + localIP + "\"], searches: [svc.cluster.local], options: [{name: ndots, value: \"2\"}]}\n",
			map[string][]string{outside: both, service: web, short: nil, "web.default": web}},
		{"config", "  dnsConfig: {searches: [example.test], options: [{name: ndots, value: \"1\"}]}\n",
			map[string][]string{outside: both, service: web, short: web, "www": both}},
		{"direct", "  dnsPolicy: None\n  dnsConfig: {nameservers: [\"" + kubeDNS + "\"]}\n", map[string][]string{outside: both, service: web}},
	} {
		t.Run(p.name, func(t *testing.T) {
			pod := "policy-" + p.name
			apply(t, podManifest(pod, "policy", "2", idle, p.spec))
			kubectl(t, "wait", "--for=condition=Ready", "pod/"+pod, "--timeout", timeout.String())
			want := make(map[string]string)
			for name, data := range p.want {
				want[name] = sorted(slices.Clone(data))
			}
			for _, libc := range []string{"musl", "glibc", "go"} {
				client{libc, "2"}.wants(t, pod, want)
			}
		})
	}
}

// TestStubDomains follows the stubDomains of the kube-dns ConfigMap. The upstream does
// not know the zone, only a server of its own.
func TestStubDomains(t *testing.T) {
	needCluster(t)
	startClients(t)
	const name = "host.corp.internal."
	want := "203.0.113.20"
	t.Cleanup(func() { _, _ = try("-n", "kube-system", "delete", "configmap", "kube-dns") })
	for _, c := range clients {
		if got := c.lookup(t, c.pod(), name)[name]; got != "" {
			t.Fatalf("%s finds %s before there is a stub domain: %s", c.pod(), name, got)
		}
	}
	kubectl(t, "-n", "kube-system", "create", "configmap", "kube-dns", `--from-literal=stubDomains={"corp.internal":["`+os.Getenv("STUB")+`"]}`)
	for _, c := range clients {
		waitFor(t, "stub domain", func() (bool, string) {
			got := c.lookup(t, c.pod(), name)[name]
			return got == want, c.pod() + " " + got
		})
	}
}

// wants compares the addresses that the client's stub gets in a pod with the wanted ones,
// for each name. While a node is so busy that nodens counts as hung, the kernel sends queries to
// CoreDNS, whose answers musl does not always understand. Only then does the stub try again.
func (c client) wants(t *testing.T, pod string, want map[string]string) {
	t.Helper()
	names := slices.Sorted(maps.Keys(want))
	var wrong []string
	for range 5 {
		before := sum(t, c.node, fallback)
		got := c.lookup(t, pod, names...)
		wrong = nil
		names = slices.DeleteFunc(names, func(n string) bool {
			if got[n] != want[n] {
				wrong = append(wrong, fmt.Sprintf("%s: %q, want %q", n, got[n], want[n]))
			}
			return got[n] == want[n]
		})
		if len(wrong) == 0 || sum(t, c.node, fallback) == before {
			break
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%s in %s:\n%s", c.libc, pod, strings.Join(wrong, "\n"))
	}
}

// fallback matches the counters of the queries that the kernel has sent to CoreDNS.
var fallback = regexp.MustCompile(`(?m)^nodens_redirect_total{.*reason="fallback_.*} (\d+)$`)

// sum adds the values that a pattern finds in the metrics of nodens on a node. It returns
// -1 if nodens does not run.
func sum(t *testing.T, node string, values *regexp.Regexp) (sum int) {
	t.Helper()
	text, err := metrics(node)
	if err != nil {
		return -1 // nodens does not run
	}
	for _, m := range values.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// lookup runs the client's stub in a pod, for one name after the other, and returns the
// addresses of each name: none if the name has none, and any other error of the stub.
func (c client) lookup(t *testing.T, pod string, names ...string) map[string]string {
	t.Helper()
	stub := c.libc + "-lookup $n"
	if c.libc == "go" {
		stub = "NODENS_LAB_LOOKUP=$n go-client"
	}
	out := kubectl(t, "exec", pod, "--", "timeout", "180", "sh", "-c", "for n in "+strings.Join(names, " ")+"; do "+stub+"; done")
	all := make(map[string]string)
	for line := range strings.Lines(out) {
		name, l, err := lab.ParseLookup(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = sorted(l.Data)
		if !slices.Contains([]string{"EAI_NONAME", "EAI_NODATA", "not_found"}, l.Err) {
			all[name] += l.Err
		}
	}
	for _, name := range names {
		if _, ok := all[name]; !ok {
			t.Fatalf("%s in %s does not print a line for %s:\n%s", c.libc, pod, name, out)
		}
	}
	return all
}

// coreDNS is the address of a pod of CoreDNS.
func coreDNS(t *testing.T) string {
	t.Helper()
	ip := kubectl(t, "-n", "kube-system", "get", "pod", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[0].status.podIP}")
	return net.JoinHostPort(ip, "53")
}

// ask returns the data that a server has for a name, with the addresses behind CNAMEs.
func ask(t *testing.T, server, name string, qtypes ...uint16) string {
	t.Helper()
	var all []string
	for _, qtype := range qtypes {
		c := dns.Client{Timeout: lab.QueryTimeout, Net: "tcp"}
		r, _, err := c.Exchange(lab.Query(name, qtype), server)
		if err != nil {
			t.Fatalf("%s %s at %s: %v", name, dns.TypeToString[qtype], server, err)
		}
		all = append(all, lab.Data(r, qtype)...)
	}
	return sorted(all)
}

func reverse(t *testing.T, ip string) string {
	t.Helper()
	name, err := dns.ReverseAddr(ip)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func sorted(list []string) string {
	slices.SortFunc(list, cmp.Compare)
	return strings.Join(slices.Compact(list), " ")
}
