package directives

import (
	"errors"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestLogLines compares the lines of the query log without ports and durations.
func TestLogLines(t *testing.T) {
	p := startPair(t, `example.test {
  BIND
  metadata
  log . "{common} {/log/type} {/log/class} {/forward/none} {unknown}"
`+forward+`other.test {
  BIND
  log www.other.test gone.other.test "{combined} at {local}" {
    class denial success
  }
  log host.other.test "at {remote} for {name} {{type}}" {
    class error
  }
`+forward)
	for _, q := range join(
		ask(dns.TypeA, "A.example.test", "none.example.test", "fail.example.test"), ask(dns.TypeMX, "a.example.test"),
		with(func(q *question) {
			q.bits = func(m *dns.Msg) { m.SetEdns0(4096, true); m.CheckingDisabled = true }
		}, ask(dns.TypeA, "www.other.test")),
		with(overTCP, ask(dns.TypeTXT, "gone.other.test")), ask(dns.TypeA, "host.other.test"),
		ask(dns.TypeA, "b.example.test"),
	) {
		q.bits = withID(q.bits)
		our, their := p.daemon.Out.Mark(), p.coreDNS.Out.Mark()
		p.ask(t, q)
		if q.name == "host.other.test" {
			continue // neither logs it
		}
		a, b := p.daemon.Out.WaitFor(t, our, `^\[INFO\]`), p.coreDNS.Out.WaitFor(t, their, `^\[INFO\]`)
		if x, y := plain(a), plain(b); x != y {
			t.Errorf("%v\nnodens  %s\nCoreDNS %s", q, x, y)
		}
	}
}

// withID sets the ID of the query to both servers.
func withID(more func(*dns.Msg)) func(*dns.Msg) {
	return func(m *dns.Msg) {
		if more != nil {
			more(m)
		}
		m.Id = 4711
	}
}

// plain removes what differs between queries from a line. It also removes AA and RA,
// which CoreDNS does not set in a failure. It removes the size of the reply, because
// nodens always compresses names, and CoreDNS only if the reply would not fit.
func plain(line string) string {
	line = regexp.MustCompile(`^\[INFO\] 127\.0\.0\.1:[0-9]+`).ReplaceAllString(line, "CLIENT")
	line = regexp.MustCompile(`[0-9.]+(e-[0-9]+)?s\b`).ReplaceAllString(line, "TOOK")
	line = regexp.MustCompile(`127\.0\.0\.1[12]`).ReplaceAllString(line, "LOCAL")
	line = regexp.MustCompile(` qr,[a-z,]* [0-9]+ `).ReplaceAllStringFunc(line, func(s string) string {
		s = strings.ReplaceAll(strings.ReplaceAll(s, ",aa", ""), ",ra", "")
		return s[:strings.LastIndexByte(s[:len(s)-1], ' ')] + " SIZE "
	})
	return line
}

// TestWhoami checks that both servers answer with the client's port.
func TestWhoami(t *testing.T) {
	p := startPair(t, ". {\n  BIND\n  whoami\n}\n")
	for _, network := range []string{"udp", "tcp"} {
		for _, host := range []string{ours, theirs, "[fd00::11]", "[fd00::12]"} {
			c, err := p.DialContext(t.Context(), network, host+":53")
			if err != nil {
				t.Fatal(err)
			}
			r, err := lab.AskOn(c, lab.Query("who.example.test", dns.TypeA))
			_ = c.Close()
			if err != nil || len(r.Extra) != 2 {
				t.Fatalf("%s: %v, %v", host, r, err)
			}
			ip, port, _ := net.SplitHostPort(c.LocalAddr().String())
			got := r.Extra[0].String() + r.Extra[1].String()
			if !strings.HasSuffix(r.Extra[0].String(), ip) || !strings.HasSuffix(r.Extra[1].String(), " "+port+" .") ||
				r.Extra[1].Header().Name != "_"+network+".who.example.test." {
				t.Errorf("%s: %s, queried from %v", host, got, c.LocalAddr())
			}
		}
	}
}

// TestDropped checks that both servers drop a query and answer the next one on the
// same socket.
func TestDropped(t *testing.T) {
	p := startPair(t, ". {\n  BIND\n  acl {\n    drop type MX net 127.0.0.0/8\n  }\n"+forward)
	for _, host := range []string{ours, theirs} {
		c, err := p.DialContext(t.Context(), "udp", host+":53")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(lab.QueryTimeout))
		dc := &dns.Conn{Conn: c}
		after := lab.Query("a.example.test", dns.TypeA)
		for _, m := range []*dns.Msg{lab.Query("a.example.test", dns.TypeMX), after} {
			if err := dc.WriteMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := dc.ReadMsg(); err != nil || r.Id != after.Id {
			t.Fatalf("%s: %v, %v", host, r, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if r, err := dc.ReadMsg(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a dropped query got %v, %v", host, r, err)
		}
	}
}

// TestPprof gets the profiles of both servers.
func TestPprof(t *testing.T) {
	binary := nodens.Path(t)
	n := lab.NewNetns(t, "node")
	lab.StartDaemon(t, lab.DaemonOptions{Binary: binary, Netns: n, Corefile: ". {\n  bind 127.0.0.1\n  debug\n  pprof 127.0.0.1:6053 {\n    block 1\n  }\n  whoami\n}\n"})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "/debug/pprof/block"} {
		if status, body := n.Get(t, "127.0.0.1:6053", path); status != http.StatusOK || body == "" {
			t.Errorf("%s: status %d, %d bytes", path, status, len(body))
		}
	}
	if status, _ := n.Get(t, "127.0.0.1:6053", "/metrics"); status != http.StatusNotFound {
		t.Errorf("/metrics: status %d", status)
	}
}

// TestMaxTCPQueries checks that the connection closes after the maximum of queries.
func TestMaxTCPQueries(t *testing.T) {
	p := startPair(t, ". {\n  BIND\n  timeouts {\n    maxtcpqueries 2\n  }\n"+forward)
	for _, host := range []string{ours, theirs} {
		c, err := p.DialContext(t.Context(), "tcp", host+":53")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if _, err := lab.AskOn(c, lab.Query("a.example.test", dns.TypeA)); err != nil {
				t.Fatalf("%s: %v", host, err)
			}
		}
		if r, err := lab.AskOn(c, lab.Query("a.example.test", dns.TypeA)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: a third query got %v, %v", host, r, err)
		}
	}
}
