package normalize

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// kind is the scripted upstream's reply for one type of one name.
type kind string

const (
	data      kind = "data"
	nodata    kind = "nodata"     // NOERROR 0/0/0
	nodataSOA kind = "nodata+SOA" // as in RFC 2308
	nx        kind = "nxdomain"
	aliasND   kind = "CNAME+nodata"
	aliasNX   kind = "CNAME+nxdomain"
	tcEmpty   kind = "TC, empty" // data over TCP
	servfail  kind = "SERVFAIL"
	refused   kind = "REFUSED"
	formerr   kind = "FORMERR"
	silence   kind = "dropped"
	referral  kind = "referral" // NS, no SOA
	secure    kind = "AD"       // NODATA with AD
	nsecOther kind = "NSEC"     // NODATA, with an NSEC record that lists the name's other types
	nsecNone  kind = "NXNAME"   // RFC 9824: NODATA, with an NSEC record that lists no type
)

// host is the addresses of a name that exists.
type host struct{ a, aaaa string }

func (h host) addr(qtype uint16) string {
	if qtype == dns.TypeA {
		return h.a
	}
	return h.aaaa
}

func (h host) record(q dns.Question) string {
	return fmt.Sprintf("%s 60 IN %s %s", q.Name, dns.Type(q.Qtype), h.addr(q.Qtype))
}

// answer makes the reply of the given kind; for data it has h's addresses. zone
// is in its SOA. nil means no reply.
func (k kind) answer(q *dns.Msg, proto, zone string, h host) *dns.Msg {
	switch k {
	case data:
		return lab.Reply(q, h.record(q.Question[0]))
	case nodata:
		return lab.Reply(q)
	case nodataSOA:
		return lab.Denial(q, dns.RcodeSuccess, zone)
	case nx:
		return lab.Denial(q, dns.RcodeNameError, zone)
	case aliasND:
		return alias(q, dns.RcodeSuccess)
	case aliasNX:
		return alias(q, dns.RcodeNameError)
	case tcEmpty:
		if proto == "tcp" {
			return lab.Reply(q, h.record(q.Question[0]))
		}
		r := lab.Reply(q)
		r.Truncated = true
		return r
	case servfail:
		return refusal(q, dns.RcodeServerFailure)
	case refused:
		return refusal(q, dns.RcodeRefused)
	case formerr:
		return refusal(q, dns.RcodeFormatError)
	case referral:
		return delegation(q, zone)
	case secure:
		r := lab.Denial(q, dns.RcodeSuccess, zone)
		r.AuthenticatedData = true
		return r
	case nsecOther:
		return proof(q, zone, "MX RRSIG NSEC")
	case nsecNone:
		return proof(q, zone, "RRSIG NSEC NXNAME")
	}
	return nil
}

// alias points to a name without data.
func alias(q *dns.Msg, rcode int) *dns.Msg {
	r := lab.Denial(q, rcode, "example.net.")
	r.Answer = lab.Reply(q, q.Question[0].Name+" 60 IN CNAME nowhere.example.net.").Answer
	return r
}

func refusal(q *dns.Msg, rcode int) *dns.Msg {
	r := lab.Reply(q)
	r.Rcode = rcode
	return r
}

// delegation is the reply of a server that does not serve the zone.
func delegation(q *dns.Msg, zone string) *dns.Msg {
	r := lab.Reply(q)
	r.RecursionAvailable = false
	r.Ns = lab.Reply(q, zone+" 60 IN NS ns."+zone).Answer
	return r
}

// proof is NODATA with the NSEC record of the name.
func proof(q *dns.Msg, zone, types string) *dns.Msg {
	name := q.Question[0].Name
	r := lab.Denial(q, dns.RcodeSuccess, zone)
	r.Ns = append(r.Ns, lab.Reply(q, name+` 60 IN NSEC \000.`+name+" "+types).Answer...)
	return r
}

// question is a name and a type, as an upstream counts them.
type question struct {
	name  string // lower case
	qtype uint16
}

// upstream is a scripted DNS server that counts queries.
type upstream struct {
	answer func(q *dns.Msg, proto string) *dns.Msg // called concurrently; nil: no reply

	mu    sync.Mutex
	asked map[question]int
}

// startUpstream serves port 53 of the addresses over UDP and TCP until the end of
// the test.
func startUpstream(t testing.TB, n *lab.Netns, answer func(q *dns.Msg, proto string) *dns.Msg, ips ...string) *upstream {
	t.Helper()
	u := &upstream{answer: answer, asked: make(map[question]int)}
	for _, ip := range ips {
		addr := net.JoinHostPort(ip, "53")
		pc := n.ListenPacket(t, "udp", addr)
		enlarge(t, pc)
		serve(t, &dns.Server{PacketConn: pc, Handler: u.handler("udp")})
		serve(t, &dns.Server{Listener: n.Listen(t, "tcp", addr), Handler: u.handler("tcp")})
	}
	return u
}

// enlarge gives pc a receive buffer for hundreds of clients at once: a lost
// datagram would look like a stall. Root may exceed net.core.rmem_max.
func enlarge(t testing.TB, pc net.PacketConn) {
	t.Helper()
	raw, err := pc.(*net.UDPConn).SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		t.Fatalf("enlarge receive buffer: %v", err)
	}
}

func serve(t testing.TB, s *dns.Server) {
	t.Helper()
	up, ended := make(chan struct{}), make(chan error, 1)
	s.NotifyStartedFunc = func() { close(up) }
	go func() { ended <- s.ActivateAndServe() }()
	select {
	case <-up:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Shutdown()
		<-ended
	})
}

func (u *upstream) handler(proto string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		u.mu.Lock()
		u.asked[question{dns.CanonicalName(q.Question[0].Name), q.Question[0].Qtype}]++
		u.mu.Unlock()
		if r := u.answer(q, proto); r != nil {
			_ = w.WriteMsg(r)
		}
	}
}

// count is the number of queries for the question.
func (u *upstream) count(name string, qtype uint16) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[question{dns.CanonicalName(name), qtype}]
}
