package conformance

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens has the race detector and a clock that a scenario moves.
var nodens = lab.Nodens("-race", "-tags", "steppedclock")

// stage is where a scenario runs: a namespace with the daemon and its upstreams,
// all on loopback.
type stage struct {
	netns     *lab.Netns
	upstreams map[string]*upstream
	clock     *bufio.ReadWriter
}

func newStage(t *testing.T, sc scenario) *stage {
	t.Helper()
	binary := nodens.Path(t)
	s := &stage{netns: lab.NewNetns(t, "node"), upstreams: map[string]*upstream{}}
	for ip, states := range sc.upstreams {
		s.netns.AddAddrs(t, "lo", ip+"/32")
		s.upstreams[ip] = startUpstream(t, s.netns, ip, states)
	}
	socket := filepath.Join(t.TempDir(), "clock")
	lab.StartDaemon(t, lab.DaemonOptions{
		Binary: binary, Netns: s.netns, Corefile: sc.corefile, Env: []string{"NODENS_CLOCK_SOCKET=" + socket},
		Args: append([]string{"-hedge=false"}, sc.args...), // scenarios count queries, and on a busy machine a reply may be late
	})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s.clock = bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
	return s
}

// advance moves the daemon's clock.
func (s *stage) advance(t *testing.T, d string) {
	t.Helper()
	fmt.Fprintln(s.clock, d)
	if err := s.clock.Flush(); err != nil {
		t.Fatal(err)
	}
	answer, err := s.clock.ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "ok" {
		t.Fatalf("advance %s: %q %v", d, answer, err)
	}
}

func (s *stage) upstream(t *testing.T, ip string) *upstream {
	t.Helper()
	u := s.upstreams[ip]
	if u == nil {
		t.Fatalf("no upstream %s", ip)
	}
	return u
}

// ask sends a query from a new socket and checks what applies to every reply (RFC
// 1035 §4.1.1, RFC 2181 §4, RFC 6891 §6.1).
func (s *stage) ask(t *testing.T, l line, a asking) reply {
	t.Helper()
	q := a.msg.Copy()
	q.Id = dns.Id()
	c := s.netns.Dial(t, a.network, "127.0.0.1:53")
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(lab.QueryTimeout))
	dc := &dns.Conn{Conn: c, UDPSize: dns.MaxMsgSize - 1}
	if err := dc.WriteMsg(q); err != nil {
		t.Fatalf("%v: %v", l, err)
	}
	b, err := dc.ReadMsgHeader(nil)
	if err != nil {
		t.Fatalf("%v: no reply: %v", l, err)
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("%v: reply %x: %v", l, b, err)
	}
	switch {
	case m.Id != q.Id, !m.Response, m.Opcode != q.Opcode, !m.RecursionAvailable, m.RecursionDesired != q.RecursionDesired,
		m.Opcode == dns.OpcodeQuery && (len(m.Question) != 1 || m.Question[0] != q.Question[0]):
		t.Errorf("%v: query\n%v\ngot the reply\n%v", l, q, m)
	case m.Zero, !plainOPT(m.IsEdns0()):
		t.Errorf("%v: reserved flags, or an EDNS version other than 0, in\n%v", l, m)
	}
	return reply{m, len(b)}
}

// plainOPT reports whether a reply's OPT record, if it has one, has only what
// EDNS version 0 defines (RFC 6891 §6.1.4).
func plainOPT(opt *dns.OPT) bool { return opt == nil || opt.Version() == 0 && opt.Z() == 0 }

// TestRows runs every scenario.
func TestRows(t *testing.T) {
	lab.NeedTools(t, "unshare")
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			t.Parallel()
			sc := readScenario(t, f)
			s := newStage(t, sc)
			for _, step := range sc.steps {
				step.play(t, s)
			}
		})
	}
}
