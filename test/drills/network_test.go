package drills

import (
	"fmt"
	"hash/fnv"
	"net"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestLate sends the first reply to each name after the second query for it. The
// client gets an answer, and later names get their own.
func TestLate(t *testing.T) {
	t.Parallel()
	n := lab.NewNetns(t, "node", addresses...)
	c := n.ListenPacket(t, "udp", upstream+":53")
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	wg.Go(func() { answerLate(c) })
	start(t, n, corefile(upstream, ""))
	for i := range 3 {
		name := fmt.Sprintf("n%d.example.org.", i)
		r := n.Ask(t, "udp", server, lab.Query(name, dns.TypeA))
		if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != hashed(name) {
			t.Errorf("%s: %s %v, want %s", name, dns.RcodeToString[r.Rcode], got, hashed(name))
		}
	}
}

// answerLate ignores the first query for a name. On the second one it answers both.
func answerLate(c net.PacketConn) {
	type late struct {
		q    *dns.Msg
		from net.Addr
	}
	waiting := map[string]late{}
	b := make([]byte, dns.MaxMsgSize)
	for {
		size, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		q := new(dns.Msg)
		if q.Unpack(b[:size]) != nil {
			continue
		}
		name := q.Question[0].Name
		first, ok := waiting[name]
		if !ok {
			waiting[name] = late{q, from}
			continue
		}
		for _, l := range []late{first, {q, from}} {
			if reply, err := lab.Reply(l.q, name+" 300 IN A "+hashed(name)).Pack(); err == nil {
				_, _ = c.WriteTo(reply, l.from)
			}
		}
	}
}

// hashed returns an address for name that depends on the name.
func hashed(name string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return fmt.Sprintf("10.%d.%d.%d", byte(h.Sum32()>>16), byte(h.Sum32()>>8), byte(h.Sum32()))
}

// TestOutOfOrder delays each reply until the next name is answered. Every client
// gets the answer to its own name.
func TestOutOfOrder(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ name, option string }{{"udp", "prefer_udp"}, {"tcp", "force_tcp"}} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			outOfOrder(t, s.option)
		})
	}
}

func outOfOrder(t *testing.T, option string) {
	const names = 8
	n := lab.NewNetns(t, "node", addresses...)
	seen, answered := make([]chan struct{}, names+1), make([]chan struct{}, names+1)
	var once [names]sync.Once // nodens may send a query twice
	for i := range seen {
		seen[i], answered[i] = make(chan struct{}), make(chan struct{})
	}
	close(answered[names])
	lab.StartUpstream(t, n, upstream+":53", func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		var i int
		if _, err := fmt.Sscanf(name, "n%d.", &i); err != nil {
			return nil
		}
		once[i].Do(func() { close(seen[i]) })
		select {
		case <-answered[i+1]:
		case <-t.Context().Done():
		}
		return lab.Reply(q, name+" 300 IN A "+hashed(name))
	})
	start(t, n, corefile(upstream, option))
	var wg sync.WaitGroup
	for i := range names {
		wg.Go(func() {
			name := fmt.Sprintf("n%d.example.org.", i)
			r, err := n.TryAsk(t, "udp", server, lab.Query(name, dns.TypeA))
			close(answered[i])
			if err != nil {
				t.Error(err)
			} else if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != hashed(name) {
				t.Errorf("%s: %s %v, want %s", name, dns.RcodeToString[r.Rcode], got, hashed(name))
			}
		})
		<-seen[i]
	}
	wg.Wait()
}
