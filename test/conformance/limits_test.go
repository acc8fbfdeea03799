package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const anyUpstream = "10.53.0.1"

// newAnswering is a stage whose upstream has an address for every name.
func newAnswering(t *testing.T, directives string, args ...string) (*stage, *lab.Upstream) {
	t.Helper()
	s := newStage(t, scenario{
		corefile: ". {\n bind 127.0.0.1\n forward . " + anyUpstream + "\n cache 300\n " + directives + "\n}\n",
		args:     args,
	})
	s.netns.AddAddrs(t, "lo", anyUpstream+"/32")
	up := lab.StartUpstream(t, s.netns, anyUpstream+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 300 IN A 192.0.2.1")
	})
	return s, up
}

// TestPortsAndIDs causes 1,000 misses and checks the queries at the upstream: IDs
// are not sequential, and a port serves few queries (RFC 5452 §9.2;
// docs/upstreams.md says how many and why that suffices).
func TestPortsAndIDs(t *testing.T) {
	const names, clients, perPort = 1000, 8, 32
	s, up := newAnswering(t, "")
	var wg sync.WaitGroup
	for client := range clients {
		c := s.netns.Dial(t, "udp", "127.0.0.1:53")
		wg.Go(func() {
			for i := client; i < names; i += clients {
				r, err := lab.AskOn(c, lab.Query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA))
				if err != nil || len(r.Answer) != 1 {
					t.Errorf("n%d: %v %v", i, r, err)
				}
			}
		})
	}
	wg.Wait()
	ports, ids := map[uint16]int{}, map[uint16]bool{}
	near := 0
	var last uint16
	for i, q := range up.Seen("") {
		ports[q.From.Port()]++
		ids[q.Msg.Id] = true
		if i > 0 && q.Msg.Id-last < 4 {
			near++
		}
		last = q.Msg.Id
	}
	// Among 1,000 random IDs about 8 are duplicates, and fewer than one in a
	// thousand is one of the four values after the previous ID.
	if len(ids) < names-40 || near > 8 {
		t.Errorf("%d different IDs in %d queries, %d close to the previous one", len(ids), names, near)
	}
	if len(ports) < names/perPort {
		t.Errorf("%d different ports in %d queries", len(ports), names)
	}
	for port, n := range ports {
		if n > 2*perPort { // the kernel may assign a port twice
			t.Errorf("port %d was used %d times", port, n)
		}
	}
}

// TestTCPConnections: a client can open as many connections as the limit allows.
// A further one replaces the one that is idle for longest (RFC 7766 §6.2.2 and
// §6.2.3).
func TestTCPConnections(t *testing.T) {
	const limit = 3
	s, _ := newAnswering(t, "", fmt.Sprintf("-max-tcp-connections-per-client=%d", limit))
	var conns []net.Conn
	for i := range limit {
		c := s.netns.Dial(t, "tcp", "127.0.0.1:53")
		answers(t, c, fmt.Sprintf("n%d.example.org.", i))
		conns = append(conns, c)
	}
	for i := range 10 { // nodens may note only after its reply that a connection is idle
		answers(t, conns[1+i%(limit-1)], "again.example.org.")
	}
	conns = append(conns, s.netns.Dial(t, "tcp", "127.0.0.1:53"))
	if !closed(t, conns[0]) {
		t.Errorf("more than %d connections stay open", limit)
	}
	for _, c := range conns[1:] {
		answers(t, c, "again.example.org.")
	}
}

// TestTCPIdle: nodens closes an idle connection and keeps answering others (RFC
// 7766 §6.2.3).
func TestTCPIdle(t *testing.T) {
	s, _ := newAnswering(t, "timeouts {\n idle 1s\n }")
	if !closed(t, s.netns.Dial(t, "tcp", "127.0.0.1:53")) {
		t.Error("an idle connection stays open")
	}
	answers(t, s.netns.Dial(t, "tcp", "127.0.0.1:53"), "after.example.org.")
}

func answers(t *testing.T, c net.Conn, name string) {
	t.Helper()
	if r, err := lab.AskOn(c, lab.Query(name, dns.TypeA)); err != nil || len(r.Answer) != 1 {
		t.Fatalf("%s: %v %v", name, r, err)
	}
}

// closed expects the other side to close c without sending data.
func closed(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return n == 0 && err != nil && (errors.Is(err, io.EOF) || !errors.As(err, &timeout) || !timeout.Timeout())
}
