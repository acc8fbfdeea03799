package directives

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Each server has its own addresses, which differ in the last byte. Both share an
// upstream.
const (
	upstreamAddr = "127.0.0.53:53"
	ours, theirs = "127.0.0.11", "127.0.0.12"
)

// pair is nodens and CoreDNS with the same Corefile.
type pair struct {
	*lab.Netns
	daemon  *lab.Daemon
	coreDNS *lab.Process
	port    string // of the blocks to query
}

// startPair starts both servers with a Corefile in which BIND stands for their IPv4
// and IPv6 addresses.
func startPair(t *testing.T, corefile string) *pair {
	t.Helper()
	coreDNS := lab.CoreDNS(t)
	binary := nodens.Path(t)
	p := &pair{Netns: lab.NewNetns(t, "node", "fd00::11/128", "fd00::12/128"), port: "53"}
	lab.StartUpstream(t, p.Netns, upstreamAddr, answer)
	p.daemon = lab.StartDaemon(t, lab.DaemonOptions{Binary: binary, Netns: p.Netns, Corefile: bindTo(corefile, "11")})
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), bindTo(corefile, "12"))
	p.coreDNS = lab.Command{Netns: p.Netns, Args: []string{coreDNS, "-conf", conf}}.Start(t)
	p.coreDNS.Out.WaitFor(t, 0, `^CoreDNS-`)
	return p
}

func bindTo(corefile, octet string) string {
	return strings.ReplaceAll(corefile, "BIND", "bind 127.0.0."+octet+" fd00::"+octet)
}

// question is a query and its transport.
type question struct {
	name    string
	qtype   uint16
	class   uint16 // 0: IN
	tcp, v6 bool
	bits    func(*dns.Msg)
}

func (q question) String() string {
	return fmt.Sprintf("%s %s", q.name, dns.Type(q.qtype))
}

func (q question) msg() *dns.Msg {
	m := lab.Query(q.name, q.qtype)
	if q.class != 0 {
		m.Question[0].Qclass = q.class
	}
	if q.bits != nil {
		q.bits(m)
	}
	return m
}

// ask queries both servers and returns their replies.
func (p *pair) ask(t *testing.T, q question) (our, their *dns.Msg) {
	t.Helper()
	network, hosts := "udp", [2]string{ours, theirs}
	if q.tcp {
		network = "tcp"
	}
	if q.v6 {
		hosts = [2]string{"[fd00::11]", "[fd00::12]"}
	}
	return p.Ask(t, network, hosts[0]+":"+p.port, q.msg()), p.Ask(t, network, hosts[1]+":"+p.port, q.msg())
}

// gist returns what must be equal: rcode, truncation, the records of all sections,
// EDE and NSID. It ignores the case of owner names, the order of records, AA and the
// fixed fields of the OPT record.
func gist(r *dns.Msg, ttls bool) string {
	out := []string{dns.RcodeToString[r.Rcode]}
	if r.Truncated {
		out = append(out, "TC")
	}
	for i, section := range [][]dns.RR{r.Answer, r.Ns, r.Extra} {
		var list []string
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			list = append(list, line(rr, ttls))
		}
		slices.Sort(list)
		for _, s := range list {
			out = append(out, []string{"answer", "authority", "additional"}[i]+" "+s)
		}
	}
	return strings.Join(append(out, optionsOf(r)...), "\n  ")
}

func optionsOf(r *dns.Msg) []string {
	var out []string
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			switch e := o.(type) {
			case *dns.EDNS0_EDE:
				out = append(out, fmt.Sprintf("EDE %d", e.InfoCode))
			case *dns.EDNS0_NSID:
				text, _ := hex.DecodeString(e.Nsid)
				out = append(out, "NSID "+string(text))
			}
		}
	}
	return out
}

// scenario is a Corefile for a directive, and its queries.
type scenario struct {
	name      string
	corefile  string
	questions []question
	// differs has the reason of a difference by question. The test fails if both
	// servers answer the same.
	differs map[string]string
}

// onPort gives every server block of the Corefile a port.
func (s scenario) onPort(port string) string {
	return regexp.MustCompile(`(?m)^([^ (]+) \{$`).ReplaceAllString(s.corefile, "$1:"+port+" {")
}

// ttlSlack is the allowed difference of TTLs in seconds: the servers are queried one
// after the other, and the machine may be slow.
const ttlSlack = 3

// sameTTLs compares the TTLs of replies with the same gist.
func sameTTLs(a, b *dns.Msg) bool {
	for i, x := range ttlsOf(a) {
		if d := x - ttlsOf(b)[i]; d > ttlSlack || d < -ttlSlack {
			return false
		}
	}
	return true
}

// ttlsOf returns the TTLs in the order of the records in gist.
func ttlsOf(r *dns.Msg) []int64 {
	var all []int64
	for _, section := range [][]dns.RR{r.Answer, r.Ns, r.Extra} {
		section = slices.DeleteFunc(slices.Clone(section), func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
		slices.SortFunc(section, func(x, y dns.RR) int { return strings.Compare(line(x, false), line(y, false)) })
		for _, rr := range section {
			all = append(all, int64(rr.Header().Ttl))
		}
	}
	return all
}

// line returns a record as text for the comparison.
func line(rr dns.RR, ttl bool) string {
	rr = dns.Copy(rr)
	if !ttl {
		rr.Header().Ttl = 0
	}
	return strings.ToLower(strings.Join(strings.Fields(rr.String()), " "))
}

// check sends every query twice: a miss and, with cache, a hit.
func (s scenario) check(t *testing.T, p *pair) {
	used := make(map[string]bool)
	for _, q := range s.questions {
		for round := range 2 {
			our, their := p.ask(t, q)
			a, b := gist(our, round == 0), gist(their, round == 0)
			_, listed := s.differs[q.String()]
			switch {
			case a == b, !listed && gist(our, false) == gist(their, false) && sameTTLs(our, their):
			case listed:
				used[q.String()] = true
			default:
				t.Errorf("%v, round %d\nnodens\n  %s\nCoreDNS\n  %s", q, round, a, b)
			}
			if !slices.Equal(our.Question, their.Question) {
				t.Errorf("%v: questions %v and %v", q, our.Question, their.Question)
			}
		}
	}
	for q, why := range s.differs {
		if !used[q] {
			t.Errorf("%s: both answer the same, but a difference is listed: %s", q, why)
		}
	}
}
