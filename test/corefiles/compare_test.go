package corefiles

import (
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// queries is the number of queries for each Corefile.
const queries = 500

// fixture is a Corefile and its addresses.
type fixture struct {
	name  string
	binds []string
}

var fixtures = []fixture{
	{"addon", []string{"169.254.20.10", "10.96.0.10"}},
	{"aks", []string{"169.254.20.10", "169.254.10.11"}},
	{"cilium", []string{"127.0.0.1"}},
	{"deckhouse", []string{"169.254.20.10"}},
	{"deliveryhero", []string{"169.254.20.10"}},
	{"gardener", []string{"169.254.20.10"}},
	{"ibm", []string{"169.254.20.10"}},
	{"kops", []string{"169.254.20.10"}},
	{"kubeasz", []string{"169.254.20.10"}},
	{"kubermatic", []string{"169.254.20.10"}},
	{"kubespray", []string{"169.254.25.10"}},
	{"lablabs", []string{"169.254.20.10"}},
	{"yandex", []string{"169.254.20.10", "fd00:20::10"}},
}

// TestAgainstCoreDNS sends the same queries to nodens and CoreDNS, which have upstreams
// with the same data. It checks that the answers are equal, except for the differences
// listed below.
func TestAgainstCoreDNS(t *testing.T) {
	lab.NeedTools(t, "unshare", "mount")
	coreDNS := lab.CoreDNS(t)
	for _, f := range fixtures {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.compare(t, coreDNS)
		})
	}
}

func (f fixture) compare(t *testing.T, coreDNS string) {
	ours, theirs := f.node(t, "nodens"), f.node(t, "coredns")
	binary := nodens.Path(t)
	conf, err := filepath.Abs(filepath.Join("testdata", f.name+".corefile"))
	if err != nil {
		t.Fatal(err)
	}
	ours.start(t, binary, conf, ` listens on `)
	theirs.start(t, coreDNS, conf, `^CoreDNS-`)

	random := rand.New(rand.NewPCG(1, uint64(hash(f.name))))
	asked := make([]question, 0, queries)
	found := map[string]int{}
	for range queries {
		q := nextQuestion(random, asked, f.binds)
		a, b := ours.ask(t, q), theirs.ask(t, q)
		for i := 0; i < 3 && slices.ContainsFunc(asked, q.same) && slices.Contains(differences(q, a, b), ttlDiffers); i++ {
			a, b = ours.ask(t, q), theirs.ask(t, q) // the entry had expired in one cache only
		}
		asked = append(asked, q)
		for _, d := range differences(q, a, b) {
			if why := explain(f.name, q, d); why != "" {
				found[why]++
				continue
			}
			if found[d]++; found[d] == 1 {
				t.Errorf("%v: %s\nnodens\n%v\nCoreDNS\n%v", q, d, a, b)
			}
		}
	}
	t.Logf("%d queries; differences: %v", len(asked), found)
}

// node is a namespace with upstreams and one server under test.
type node struct {
	*lab.Netns
	env   []string
	binds map[string]string
}

func (f fixture) node(t *testing.T, name string) node {
	t.Helper()
	n := node{Netns: lab.NewNetns(t, name)}
	for _, ip := range f.binds {
		switch {
		case strings.Contains(ip, ":"):
			n.AddAddrs(t, "lo", ip+"/128")
		case ip != "127.0.0.1":
			n.AddAddrs(t, "lo", ip+"/32")
		}
	}
	world := lab.NewNetns(t, name+"-upstreams")
	n.Join(t, "eth0", []string{"10.99.0.1/30"}, world, "eth0", []string{"10.99.0.2/30"})
	n.AddRoute(t, "0.0.0.0/0", "10.99.0.2")
	certificate, ca := lab.Certificate(t, "dns.example", time.Now().Add(time.Hour))
	startUpstreams(t, world, certificate)
	dir := t.TempDir()
	n.env = []string{"MY_HOST_IP=169.254.20.10", "TEST_CA=" + lab.WriteFile(t, filepath.Join(dir, "ca.pem"), ca)}
	n.binds = map[string]string{"/etc/resolv.conf": lab.WriteFile(t, filepath.Join(dir, "resolv.conf"), "nameserver "+outside+"\n")}
	return n
}

func (n node) start(t *testing.T, binary, conf, ready string) {
	t.Helper()
	p := lab.Command{Netns: n.Netns, Args: []string{binary, "-conf", conf}, Env: n.env, Binds: n.binds}.Start(t)
	p.Out.WaitFor(t, 0, ready)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s:\n%s\n%s", binary, p.Out.Text(), p.Err.Text())
		}
	})
}

// question is a query and its destination.
type question struct {
	name          string
	qtype         uint16
	network, bind string
	edns          uint16 // size; 0: no OPT
	do, nsid      bool
}

func (q question) String() string {
	return fmt.Sprintf("%s %s @%s over %s, edns %d, do %t, nsid %t", q.name, dns.Type(q.qtype), q.bind, q.network, q.edns, q.do, q.nsid)
}

// same reports whether a cache may give both questions the same answer.
func (q question) same(other question) bool {
	return strings.EqualFold(q.name, other.name) && q.qtype == other.qtype
}

var (
	labels = []string{"www", "gone", "alias", "four", "empty", "large", "broken", "mail", "blocked", "_dns._udp", "WwW"}
	zones  = []string{
		"default.svc.cluster.local.", "kube-system.svc.cluster.local.", "default.old.cluster.local.", "example.org.",
		"corp.example.", "public.corp.example.", "registry.example.", "six.example.", "internal.example.",
		"a.b.c.d.e.internal.cloudapp.example.", "health-check.localdns.local.", "1.0.10.in-addr.arpa.",
		"d.f.ip6.arpa.",
	}
	types = []uint16{
		dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypePTR, dns.TypeSRV, dns.TypeTXT, dns.TypeMX,
	}
)

// nextQuestion returns an earlier question, which is a hit, or a new one.
func nextQuestion(r *rand.Rand, asked []question, binds []string) question {
	if len(asked) > 0 && r.IntN(3) == 0 {
		return asked[r.IntN(len(asked))]
	}
	q := question{
		name: labels[r.IntN(len(labels))], qtype: types[r.IntN(len(types))],
		network: []string{"udp", "udp", "tcp"}[r.IntN(3)], bind: binds[r.IntN(len(binds))],
		edns: []uint16{0, 0, 512, 1232, 4096}[r.IntN(5)],
	}
	if r.IntN(2) == 0 {
		q.name += fmt.Sprint(r.IntN(50))
	}
	q.name += "." + zones[r.IntN(len(zones))]
	if r.IntN(12) == 0 {
		q.name = zones[r.IntN(len(zones))]
	}
	if q.edns > 0 {
		q.do, q.nsid = r.IntN(4) == 0, r.IntN(4) == 0
	}
	return q
}

func (n node) ask(t *testing.T, q question) *dns.Msg {
	t.Helper()
	m := lab.Query(q.name, q.qtype)
	if q.edns > 0 {
		m.SetEdns0(q.edns, q.do)
		if q.nsid {
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
		}
	}
	return n.Ask(t, q.network, net.JoinHostPort(q.bind, "53"), m)
}

// ttlSlack is the allowed difference of TTLs in seconds: the servers are queried one
// after the other, and the machine may be slow.
const ttlSlack = 5

const ttlDiffers = "ttl"

// differences returns the differences of two replies to the same question. Each
// starts with a keyword.
func differences(q question, a, b *dns.Msg) []string {
	var list []string
	note := func(what string, x, y any) {
		if fmt.Sprint(x) != fmt.Sprint(y) {
			list = append(list, fmt.Sprintf("%s: %v, CoreDNS %v", what, x, y))
		}
	}
	note("rcode", dns.RcodeToString[a.Rcode], dns.RcodeToString[b.Rcode])
	note("aa", a.Authoritative, b.Authoritative)
	note("tc", a.Truncated, b.Truncated)
	note("ra", a.RecursionAvailable, b.RecursionAvailable)
	note("ad", a.AuthenticatedData, b.AuthenticatedData)
	note("cd", a.CheckingDisabled, b.CheckingDisabled)
	note("question", a.Question, b.Question)
	note("answer", data(a.Answer), data(b.Answer))
	note("authority", data(a.Ns), data(b.Ns))
	note("opt", a.IsEdns0() != nil, b.IsEdns0() != nil)
	note("nsid", nsid(a), nsid(b))
	if len(a.Answer) == len(b.Answer) && len(a.Ns) == len(b.Ns) && !sameTTLs(slices.Concat(a.Answer, a.Ns), slices.Concat(b.Answer, b.Ns)) {
		list = append(list, ttlDiffers)
	}
	return list
}

// data returns the records without TTLs, sorted. Names are in lower case: nodens
// answers with the owner name of the query, CoreDNS with that of the upstream.
func data(rrs []dns.RR) []string {
	var list []string
	for _, rr := range rrs {
		rr := dns.Copy(rr)
		rr.Header().Ttl = 0
		list = append(list, strings.ToLower(rr.String()))
	}
	return list
}

func sameTTLs(a, b []dns.RR) bool {
	for i := range a {
		d := int64(a[i].Header().Ttl) - int64(b[i].Header().Ttl)
		if d > ttlSlack || d < -ttlSlack {
			return false
		}
	}
	return true
}

func nsid(m *dns.Msg) string {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if n, ok := o.(*dns.EDNS0_NSID); ok {
				return n.Nsid
			}
		}
	}
	return ""
}

// known is an accepted difference and its reason.
type known struct {
	why      string
	fixture  string // "" is all
	question func(question) bool
	what     *regexp.Regexp
}

// explain returns the reason of an accepted difference, or "".
func explain(fixture string, q question, difference string) string {
	for _, k := range knownDifferences {
		if (k.fixture == "" || k.fixture == fixture) && (k.question == nil || k.question(q)) && k.what.MatchString(difference) {
			return k.why
		}
	}
	return ""
}

var knownDifferences = []known{
	{
		why:  "CoreDNS sets AA in cached answers; nodens is not authoritative and never sets it",
		what: regexp.MustCompile(`^aa: false, CoreDNS true`),
	},
	{
		why:  "CoreDNS does not set RA in a failure; nodens always sets it",
		what: regexp.MustCompile(`^ra: true, CoreDNS false`),
	},
}
