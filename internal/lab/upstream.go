package lab

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// Seen is a query that an Upstream has received.
type Seen struct {
	Proto string // "udp" or "tcp"
	From  netip.AddrPort
	Msg   *dns.Msg
}

// Upstream is a DNS server with scripted answers.
type Upstream struct {
	answer func(q *dns.Msg) *dns.Msg

	mu   sync.Mutex
	seen []Seen
	news chan struct{} // closed and replaced at every query
}

// StartUpstream serves address, host:port inside the namespace, over UDP and TCP
// until the end of the test. It calls answer concurrently. If answer returns nil,
// it sends no reply.
func StartUpstream(t testing.TB, n *Netns, address string, answer func(q *dns.Msg) *dns.Msg) *Upstream {
	t.Helper()
	u := &Upstream{answer: answer, news: make(chan struct{})}
	Serve(t, n, address, u.handler)
	return u
}

// Serve answers with a handler for "udp" and one for "tcp" at address, host:port
// inside the namespace, until the end of the test.
func Serve(t testing.TB, n *Netns, address string, handler func(proto string) dns.Handler) {
	t.Helper()
	for _, s := range []*dns.Server{
		{PacketConn: n.ListenPacket(t, "udp", address), Handler: handler("udp")},
		{Listener: n.Listen(t, "tcp", address), Handler: handler("tcp")},
	} {
		up, ended := make(chan struct{}), make(chan error, 1)
		s.NotifyStartedFunc = func() { close(up) }
		go func() { ended <- s.ActivateAndServe() }()
		select {
		case <-up:
		case err := <-ended:
			t.Fatalf("serve %s: %v", address, err)
		}
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
}

func (u *Upstream) handler(proto string) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		u.note(proto, w.RemoteAddr(), q)
		if r := u.answer(q); r != nil {
			_ = w.WriteMsg(r)
		}
	})
}

func (u *Upstream) note(proto string, from net.Addr, q *dns.Msg) {
	addr, _ := netip.ParseAddrPort(from.String())
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen = append(u.seen, Seen{proto, addr, q})
	close(u.news)
	u.news = make(chan struct{})
}

// Seen returns the queries for name so far, or all queries if name is empty.
func (u *Upstream) Seen(name string) []Seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	var list []Seen
	for _, s := range u.seen {
		if name == "" || dns.CanonicalName(s.Msg.Question[0].Name) == dns.CanonicalName(name) {
			list = append(list, s)
		}
	}
	return list
}

// WaitFor waits for a query for name and returns the first one.
func (u *Upstream) WaitFor(t testing.TB, name string) Seen {
	t.Helper()
	for {
		u.mu.Lock()
		news := u.news
		u.mu.Unlock()
		if s := u.Seen(name); len(s) > 0 {
			return s[0]
		}
		select {
		case <-news:
		case <-t.Context().Done():
			t.Fatalf("no query for %s", name)
		}
	}
}

// Reply answers q with the given records in master file form, with RA and an OPT
// record if q has one.
func Reply(q *dns.Msg, records ...string) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	r.RecursionAvailable = true
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil {
			panic(err) // a mistake in the test
		}
		r.Answer = append(r.Answer, rr)
	}
	if o := q.IsEdns0(); o != nil {
		r.SetEdns0(1232, o.Do())
	}
	return r
}

// ReplyAddress answers an A query with ip, an AAAA query with 2001:db8::1, and
// others with no data.
func ReplyAddress(q *dns.Msg, ip string) *dns.Msg {
	name := q.Question[0].Name
	switch q.Question[0].Qtype {
	case dns.TypeA:
		return Reply(q, name+" 30 IN A "+ip)
	case dns.TypeAAAA:
		return Reply(q, name+" 30 IN AAAA 2001:db8::1")
	}
	return Denial(q, dns.RcodeSuccess, name)
}

// Denial is a negative answer to q: rcode NOERROR or NXDOMAIN, and the SOA of
// zone.
func Denial(q *dns.Msg, rcode int, zone string) *dns.Msg {
	r := Reply(q)
	r.Rcode = rcode
	below := strings.TrimPrefix(zone, ".")
	soa, err := dns.NewRR(zone + " 30 IN SOA ns." + below + " hostmaster." + below + " 1 7200 1800 86400 30")
	if err != nil {
		panic(err)
	}
	r.Ns = append(r.Ns, soa)
	return r
}
