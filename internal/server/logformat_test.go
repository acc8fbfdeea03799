package server

import (
	"log/slog"
	"regexp"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// lines collects one string for each Write.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, string(b))
	return len(b), nil
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

func TestLogFormat(t *testing.T) {
	common := `\[INFO\] 127\.0\.0\.1:[0-9]+ - 4711 "A IN a\.example\.org\. udp 42 true 4096" NOERROR qr,rd,ra [0-9]+ [0-9.e-]+s`
	for _, tt := range []struct {
		format   string
		metadata bool
		want     string
	}{
		{"{common}", false, common},
		{"{combined}", false, common + ` "0"`},
		{"at {remote}, {name} {unknown} { {type} } {", false, `\[INFO\] at 127\.0\.0\.1, a\.example\.org\. \{unknown\} \{ A \} \{`},
		{"{local} {proto}} {>rflags}", false, `\[INFO\] 127\.[0-9.]+ udp\} qr,rd,ra`},
		{"{/log/type} {/log/class} {/forward/upstream}", false, `\[INFO\] - - -`},
		{"{/log/type} {/log/class} {/forward/upstream}", true, `\[INFO\] NOERROR success -`},
	} {
		out := new(lines)
		z := zone("example.org.", newCache(t), (&records{t: t, list: []string{"a.example.org. 60 IN A 192.0.2.1"}}).Exchange)
		z.Log = NewQueryLog(slog.New(slog.DiscardHandler), out, []LogRule{{Name: ".", Classes: LogAll, Format: ParseLogFormat(tt.format, tt.metadata)}})
		ts := newTestServer(t, Config{}, z)
		m := query("A.example.org.", dns.TypeA, withEDNS(4096, true))
		m.Id = 4711
		for range 2 { // a miss and a hit
			ts.ask(t, "udp", m)
		}
		// The last line may be written after the reply.
		stop(t, ts)
		got := out.take()
		if len(got) != 2 {
			t.Fatalf("%q: lines %q", tt.format, got)
		}
		for _, line := range got {
			if !regexp.MustCompile("^" + tt.want + "\n$").MatchString(line) {
				t.Errorf("%q: got %q, want %s", tt.format, line, tt.want)
			}
		}
	}
}

// stop ends the server, so that it has written all its output.
func stop(t *testing.T, ts *testServer) {
	t.Helper()
	if err := ts.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestReplyKind(t *testing.T) {
	soa, ns := "example.org. 1 IN SOA a. b. 1 1 1 1 1", "example.org. 1 IN NS a."
	for _, tt := range []struct {
		rcode      int
		answer, ns []string
		kind       string
		class      LogClass
	}{
		{dns.RcodeSuccess, []string{"a. 1 IN A 192.0.2.1"}, nil, "NOERROR", LogSuccess},
		{dns.RcodeSuccess, nil, nil, "NOERROR", LogSuccess},
		{dns.RcodeSuccess, nil, []string{soa}, "NODATA", LogDenial},
		{dns.RcodeSuccess, nil, []string{ns}, "DELEGATION", LogSuccess},
		{dns.RcodeNameError, nil, []string{soa}, "NXDOMAIN", LogDenial},
		{dns.RcodeServerFailure, nil, nil, "SERVERERROR", LogError},
		{dns.RcodeRefused, nil, nil, "OTHERERROR", LogError},
	} {
		m := reply(t, query("example.org.", dns.TypeA), tt.answer...)
		m.Rcode, m.Ns = tt.rcode, reply(t, m, tt.ns...).Answer
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if k, c := replyKind(b, tt.rcode), classOf(b, tt.rcode); k != tt.kind || c != tt.class {
			t.Errorf("%v: got %s, %s, want %s, %s", m, k, c, tt.kind, tt.class)
		}
	}
}
