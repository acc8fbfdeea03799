package test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestTCP uses connections in ways that RFC 7766 and RFC 9210 allow, and in some
// that they do not.
func TestTCP(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	slow := make(chan struct{})
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "slow.") {
			select {
			case <-slow:
			case <-t.Context().Done():
			}
		}
		return lab.Reply(q, q.Question[0].Name+" 30 IN A "+hashed(q.Question[0].Name))
	})
	c.start(t, `. {
		cache 30
		bind `+localIP+`
		forward . `+ip+`
		`+admin+`
	}`)
	t.Run("pipelined, the slow one first", func(t *testing.T) { testPipeline(t, c, slow) })
	t.Run("byte by byte", func(t *testing.T) { testByteByByte(t, c) })
	t.Run("half-close", func(t *testing.T) { testHalfClose(t, c) })
	t.Run("a frame of zero length", func(t *testing.T) { testZeroFrame(t, c) })
	t.Run("slow loris", func(t *testing.T) { testSlowLoris(t, c) })
}

// dialTCP connects to nodens and sets a deadline for the whole test.
func dialTCP(t *testing.T, c *cluster) *net.TCPConn {
	t.Helper()
	conn := c.pod.Dial(t, "tcp", localAddr).(*net.TCPConn)
	if err := conn.SetDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// frames are queries for the names, with their indices as IDs.
func frames(t *testing.T, names ...string) []byte {
	t.Helper()
	var out []byte
	for i, name := range names {
		q := lab.Query(name, dns.TypeA)
		q.Id = uint16(i)
		out = append(out, frame(pack(t, q))...)
	}
	return out
}

// readAnswer reads one reply and expects the right answer to one of the names of
// frames.
func readAnswer(t *testing.T, conn net.Conn, names ...string) uint16 {
	t.Helper()
	r, err := (&dns.Conn{Conn: conn}).ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	if int(r.Id) >= len(names) {
		t.Fatalf("a reply with ID %d", r.Id)
	}
	name := names[r.Id]
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{hashed(name)}) {
		t.Errorf("%s: %s %v", name, dns.RcodeToString[r.Rcode], got)
	}
	return r.Id
}

// testPipeline sends 100 queries at once. nodens answers 99 while the first one
// waits (RFC 7766 §6.2.1.1), and then the first one.
func testPipeline(t *testing.T, c *cluster, slow chan<- struct{}) {
	names := []string{"slow.example."}
	for i := range 99 {
		names = append(names, fmt.Sprintf("fast%d.example.", i))
	}
	conn := dialTCP(t, c)
	if _, err := conn.Write(frames(t, names...)); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint16]bool)
	for range 99 {
		id := readAnswer(t, conn, names...)
		if id == 0 || seen[id] {
			t.Fatalf("unexpected or second reply %d before the first query's", id)
		}
		seen[id] = true
	}
	close(slow)
	if id := readAnswer(t, conn, names...); id != 0 {
		t.Errorf("reply %d came last", id)
	}
}

// testByteByByte sends each byte in its own write, and so in its own segment.
func testByteByByte(t *testing.T, c *cluster) {
	names := []string{"octets.example.", "fast1.example."} // a miss, a hit
	conn := dialTCP(t, c)
	for _, b := range frames(t, names...) {
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	for range names {
		readAnswer(t, conn, names...)
	}
}

// testHalfClose closes the client's side after the queries. nodens answers them
// and closes its side.
func testHalfClose(t *testing.T, c *cluster) {
	names := []string{"half.example.", "fast2.example.", "close.example."}
	conn := dialTCP(t, c)
	if _, err := conn.Write(frames(t, names...)); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range names {
		readAnswer(t, conn, names...)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the answers: %d bytes, %v; want EOF", n, err)
	}
}

// testZeroFrame sends a frame without a message. nodens closes the connection and
// keeps serving.
func testZeroFrame(t *testing.T, c *cluster) {
	conn := dialTCP(t, c)
	if _, err := conn.Write([]byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %v; want EOF", n, err)
	}
	readAsked(t, c, "tcp", "fast3.example.")
}

func readAsked(t *testing.T, c *cluster, network, name string) {
	t.Helper()
	r := c.pod.Ask(t, network, localAddr, lab.Query(name, dns.TypeA))
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{hashed(name)}) {
		t.Errorf("%s over %s: %s %v", name, network, dns.RcodeToString[r.Rcode], got)
	}
}

// slowConnections is more than the connection limit of a listener.
const slowConnections = 1100

// testSlowLoris opens more connections than nodens accepts and sends the first
// bytes of a query on each. nodens serves UDP, an older connection of another
// client and new connections all the time. It closes the slow ones.
func testSlowLoris(t *testing.T, c *cluster) {
	older := c.node.Dial(t, "tcp", localAddr)
	query := frames(t, "fast4.example.")
	var slow []*net.TCPConn
	for range slowConnections {
		conn := dialTCP(t, c)
		if _, err := conn.Write(query[:5]); err != nil && !isReset(err) {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	readAsked(t, c, "udp", "fast5.example.")
	_ = older.SetDeadline(time.Now().Add(lab.QueryTimeout))
	if _, err := older.Write(query); err != nil {
		t.Fatal(err)
	}
	readAnswer(t, older, "fast4.example.")
	readAsked(t, c, "udp", "loris.example.")
	readAsked(t, c, "tcp", "meanwhile.example.")

	for i, conn := range slow {
		if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) && !isReset(err) {
			t.Fatalf("slow connection %d: %d bytes, %v; want it closed", i, n, err)
		}
	}
	if n, ok := c.node.Scrape(t, metrics).Sum("nodens_server_tcp_evicted_total"); !ok || n == 0 {
		t.Error("no closed connection counted")
	}
	readAsked(t, c, "tcp", "recovered.example.")
}

// TestGreedyPods: two pods open 1,024 idle TCP connections each. A third pod gets answers
// over TCP at once, and keeps its connection while they open more.
func TestGreedyPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 30 IN A "+hashed(q.Question[0].Name))
	})
	greedy := []*lab.Netns{c.pod, c.node.AddPod(t, "greedy")}
	third := c.node.AddPod(t, "third")
	lab.StartDaemon(t, lab.DaemonOptions{Binary: buildPlain.Path(t), Netns: c.node,
		Corefile: ". {\n cache 30\n bind " + localIP + "\n forward . " + ip + "\n " + admin + "}\n"})
	hold := func() {
		for range 1024 {
			for _, pod := range greedy {
				conn := pod.Dial(t, "tcp", localAddr)
				t.Cleanup(func() { _ = conn.Close() })
			}
		}
	}
	hold()
	conn := third.Dial(t, "tcp", localAddr)
	for i := range 3 {
		r, err := lab.AskOn(conn, lab.Query(fmt.Sprintf("n%d.example.", i), dns.TypeA))
		if err != nil || len(r.Answer) != 1 {
			t.Fatalf("the third pod, query %d: %v %v", i, r, err)
		}
		if i == 0 {
			hold()
		}
	}
	m := c.node.Scrape(t, metrics)
	if n, _ := m.Sum("nodens_server_tcp_evicted_total"); n < 1024 {
		t.Errorf("%v connections closed to make room", n)
	}
	if n, _ := m.Sum("nodens_server_tcp_rejected_total"); n > 0 {
		t.Errorf("%v connections rejected", n)
	}
}

func isReset(err error) bool {
	return strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "broken pipe")
}

// TestReplySource sends queries to a node with several addresses and a wildcard
// bind. Each reply comes from the address that the query went to, for hits,
// misses and errors.
func TestReplySource(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 30 IN A "+hashed(q.Question[0].Name))
	})
	c.node.AddAddrs(t, "pod0", "10.0.1.77/24", "fd00:1::77/64")
	c.node.AddAddrs(t, "lo", "fd00:20::10/128")
	c.pod.AddRoute(t, "fd00:20::/64", "fd00:1::1")
	c.start(t, ". {\n cache 30\n forward . "+ip+"\n}")

	for _, s := range []struct{ network, listen, server string }{
		{"udp4", "0.0.0.0:0", "10.0.1.1"},
		{"udp4", "0.0.0.0:0", "10.0.1.77"},
		{"udp4", "0.0.0.0:0", localIP},
		{"udp4", "0.0.0.0:0", "10.1.1.1"},
		{"udp6", "[::]:0", "fd00:1::1"},
		{"udp6", "[::]:0", "fd00:1::77"},
		{"udp6", "[::]:0", "fd00:20::10"},
	} {
		t.Run(s.server, func(t *testing.T) {
			conn := c.pod.ListenPacket(t, s.network, s.listen)
			server := netip.AddrPortFrom(netip.MustParseAddr(s.server), 53)
			name := "from." + strings.ReplaceAll(s.server, ":", "-") + ".example."
			for _, kind := range []string{"miss", "hit"} {
				sourceOf(t, conn, kind, server, pack(t, lab.Query(name, dns.TypeA)))
			}
			status := lab.Query(name, dns.TypeA)
			status.Opcode = dns.OpcodeStatus
			sourceOf(t, conn, "error", server, pack(t, status))
		})
	}
}

// sourceOf sends msg to server and expects the reply from there.
func sourceOf(t *testing.T, conn net.PacketConn, kind string, server netip.AddrPort, msg []byte) {
	t.Helper()
	if _, err := conn.WriteTo(msg, net.UDPAddrFromAddrPort(server)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, from, err := conn.ReadFrom(buf)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	if got := from.(*net.UDPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != server {
		t.Errorf("%s: query to %v, reply from %v", kind, server, got)
	}
	if n < 12 || !bytes.Equal(buf[:2], msg[:2]) || binary.BigEndian.Uint16(buf[2:])&0x8000 == 0 {
		t.Errorf("%s: no reply to the query: %x", kind, buf[:n])
	}
}
