package conformance

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// upstream is a scripted server on port 53 of an address.
type upstream struct {
	ip     string
	netns  *lab.Netns
	states map[string][]rule

	mu      sync.Mutex
	rules   []rule
	queries []query
	closers []io.Closer
	work    sync.WaitGroup
}

// query is one that an upstream received.
type query struct {
	proto string
	msg   *dns.Msg
}

func startUpstream(t *testing.T, n *lab.Netns, ip string, states map[string][]rule) *upstream {
	t.Helper()
	u := &upstream{ip: ip, netns: n, states: states, rules: states[""]}
	u.up(t)
	t.Cleanup(u.down)
	return u
}

// up opens the sockets.
func (u *upstream) up(t *testing.T) {
	t.Helper()
	addr := net.JoinHostPort(u.ip, "53")
	var c net.PacketConn
	var l net.Listener
	err := u.netns.Do(func() (err error) {
		if c, err = net.ListenPacket("udp", addr); err == nil {
			l, err = net.Listen("tcp", addr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	u.mu.Lock()
	u.closers = []io.Closer{c, l}
	u.mu.Unlock()
	u.work.Go(func() { u.serveUDP(c) })
	u.work.Go(func() { u.serveTCP(l) })
}

// down closes all sockets, so that the kernel rejects new queries.
func (u *upstream) down() {
	u.mu.Lock()
	for _, c := range u.closers {
		_ = c.Close()
	}
	u.closers = nil
	u.mu.Unlock()
	u.work.Wait()
}

// track keeps c for down to close. It returns false after down.
func (u *upstream) track(c io.Closer) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closers == nil {
		return false
	}
	u.closers = append(u.closers, c)
	return true
}

// decide stores a query and returns the rule for it and the packed reply.
func (u *upstream) decide(proto string, b []byte) (*rule, *dns.Msg) {
	q := new(dns.Msg)
	if q.Unpack(b) != nil || len(q.Question) != 1 {
		return &rule{drop: true}, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.queries = append(u.queries, query{proto, q})
	for i := range u.rules {
		if r := &u.rules[i]; r.fits(proto, q) {
			return r, r.message(q)
		}
	}
	return &rule{}, new(dns.Msg).SetRcode(q, dns.RcodeRefused)
}

func (u *upstream) serveUDP(c net.PacketConn) {
	b := make([]byte, dns.MaxMsgSize)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		r, m := u.decide("udp", b[:n])
		if r.drop || r.hangUp {
			continue
		}
		if r.first != "" {
			u.mislead(c, from, r.first, m)
		}
		reply := pack(m)
		_, _ = c.WriteTo(reply, from)
		if r.twice {
			_, _ = c.WriteTo(reply, from)
		}
	}
}

// forged is an address that no upstream returns.
const forged = "192.0.2.66"

// mislead sends a datagram that is not a reply to the query, with false data.
func (u *upstream) mislead(c net.PacketConn, to net.Addr, how string, good *dns.Msg) {
	bad := good.Copy()
	bad.Rcode = dns.RcodeSuccess
	if rr, err := dns.NewRR(good.Question[0].Name + " 300 IN A " + forged); err == nil {
		bad.Answer = []dns.RR{rr}
	}
	switch how {
	case "id":
		bad.Id ^= 1
	case "question":
		bad.Question[0].Name = "other." + bad.Question[0].Name
	case "type":
		bad.Question[0].Qtype = dns.TypeAAAA
	case "class":
		bad.Question[0].Qclass = dns.ClassCHAOS
	case "garbage":
		_, _ = c.WriteTo(append(pack(bad)[:4], 0xff, 0xff, 0xff), to)
		return
	case "empty":
		_, _ = c.WriteTo(nil, to)
		return
	case "port":
		_ = u.netns.Do(func() error {
			other, err := net.ListenPacket("udp", net.JoinHostPort(u.ip, "0"))
			if err == nil {
				_, err = other.WriteTo(pack(bad), to)
				_ = other.Close()
			}
			return err
		})
		return
	}
	_, _ = c.WriteTo(pack(bad), to)
}

func (u *upstream) serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if !u.track(c) {
			_ = c.Close()
			return
		}
		u.work.Go(func() {
			defer c.Close()
			u.serveConn(c)
		})
	}
}

func (u *upstream) serveConn(c net.Conn) {
	for {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return
		}
		r, m := u.decide("tcp", b)
		if r.drop {
			continue
		}
		reply := pack(m)
		frame := append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)
		if r.hangUp {
			_, _ = c.Write(frame[:len(frame)/2])
			if r.reset {
				_ = c.(*net.TCPConn).SetLinger(0)
			}
			return
		}
		_, _ = c.Write(frame)
	}
}

// last returns the number of queries for a question, and the last one.
func (u *upstream) last(name, qtype string) (int, query) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, found := 0, query{}
	for _, q := range u.queries {
		question := q.msg.Question[0]
		if (name == "*" || dns.CanonicalName(question.Name) == dns.CanonicalName(name)) && (qtype == "*" || dns.Type(question.Qtype).String() == qtype) {
			n, found = n+1, q
		}
	}
	return n, found
}

func (u *upstream) use(state string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	rules, ok := u.states[state]
	u.rules = rules
	return ok
}

func pack(m *dns.Msg) []byte {
	b, err := m.Pack()
	if err != nil {
		panic(err) // a message from a scenario's records
	}
	return b
}
