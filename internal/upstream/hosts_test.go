package upstream

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
)

const hostsText = `
127.0.0.1 localhost localhost.localdomain # loop
::1 localhost
192.0.2.10 Web.Example.ORG web
192.0.2.11 web.example.org
fe80::1%eth0 link.example.org
10.0.0.1 outside.test
not-an-address x.example.org
192.0.2.12
192.0.2.10 web.example.org
192.0.2.30 *.Wild.example.org
192.0.2.31 own.wild.example.org
2001:db8::32 six.wild.example.org
::ffff:192.0.2.33 mapped.example.org
`

func newTestHosts(t *testing.T, change func(*HostsConfig)) *Hosts {
	t.Helper()
	c := HostsConfig{Path: "hosts", TTL: 77, ReadFile: func(string) ([]byte, error) { return []byte(hostsText), nil },
		Inline: []HostsEntry{{netip.MustParseAddr("192.0.2.20"), []string{"inline.example.org."}}}}
	if change != nil {
		change(&c)
	}
	h, err := NewHosts(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// outcome formats the result of an exchange: rcode or error, then the data.
func outcome(m *dns.Msg, err error) string {
	var e *Error
	switch {
	case errors.Is(err, ErrNotMine):
		return "not mine"
	case errors.As(err, &e):
		return "error"
	case err != nil:
		return "unexpected " + err.Error()
	case !m.Authoritative || !m.Response:
		return "not authoritative"
	}
	out := []string{rcodeLabel(m.Rcode)}
	for _, rr := range m.Answer {
		f := strings.Fields(rr.String())
		out = append(out, strings.Join(f[3:], " "))
	}
	for _, rr := range append(m.Ns, m.Extra...) {
		out = append(out, "+"+dns.TypeToString[rr.Header().Rrtype])
	}
	return strings.Join(out, " ")
}

func TestHosts(t *testing.T) {
	restrict := func(c *HostsConfig) { c.Zones = []string{"example.org."} }
	falls := func(c *HostsConfig) { c.Fallthrough = []string{"sub.example.org."} }
	tests := []struct {
		name   string
		change func(*HostsConfig)
		q      string
		qtype  uint16
		want   string
	}{
		{"A", nil, "localhost.", dns.TypeA, "NOERROR A 127.0.0.1"},
		{"AAAA", nil, "localhost.", dns.TypeAAAA, "NOERROR AAAA ::1"},
		{"several, once each", nil, "WEB.example.org.", dns.TypeA, "NOERROR A 192.0.2.10 A 192.0.2.11"},
		{"alias", nil, "web.", dns.TypeA, "NOERROR A 192.0.2.10"},
		{"inline", nil, "inline.example.org.", dns.TypeA, "NOERROR A 192.0.2.20"},
		{"zone dropped", nil, "link.example.org.", dns.TypeAAAA, "NOERROR AAAA fe80::1"},
		{"other family", nil, "web.", dns.TypeAAAA, "NOERROR"},
		{"other type", nil, "web.", dns.TypeMX, "NOERROR"},
		{"unknown", nil, "nobody.example.org.", dns.TypeA, "error"},
		{"unknown falls", falls, "x.sub.example.org.", dns.TypeA, "not mine"},
		{"unknown falls elsewhere", falls, "nobody.example.org.", dns.TypeA, "error"},
		{"known does not fall", func(c *HostsConfig) { c.Fallthrough = []string{"."} }, "web.", dns.TypeAAAA, "NOERROR"},
		{"another type falls", func(c *HostsConfig) { c.Fallthrough, c.FallthroughUnsupported = []string{"."}, true }, "web.", dns.TypeMX, "not mine"},
		{"an address does not fall", func(c *HostsConfig) { c.Fallthrough, c.FallthroughUnsupported = []string{"."}, true }, "web.", dns.TypeAAAA, "NOERROR"},
		{"another type falls elsewhere", func(c *HostsConfig) { c.Fallthrough, c.FallthroughUnsupported = []string{"test."}, true }, "web.", dns.TypeMX, "NOERROR"},
		{"wildcard", nil, "X.wild.example.org.", dns.TypeA, "NOERROR A 192.0.2.30"},
		{"wildcard, other family", nil, "x.wild.example.org.", dns.TypeAAAA, "NOERROR"},
		{"beside a wildcard", nil, "own.wild.example.org.", dns.TypeA, "NOERROR A 192.0.2.31"},
		{"beside a wildcard of the other family", nil, "six.wild.example.org.", dns.TypeA, "NOERROR A 192.0.2.30"},
		{"wildcard is for one label", nil, "x.y.wild.example.org.", dns.TypeA, "error"},
		{"wildcard is not for the name above", nil, "wild.example.org.", dns.TypeA, "error"},
		{"wildcard by name", nil, "*.wild.example.org.", dns.TypeA, "NOERROR A 192.0.2.30"},
		{"wildcard inside the zones", restrict, "x.wild.example.org.", dns.TypeA, "NOERROR A 192.0.2.30"},
		{"PTR to a wildcard", nil, "30.2.0.192.in-addr.arpa.", dns.TypePTR, "not mine"},
		{"mapped", nil, "mapped.example.org.", dns.TypeA, "NOERROR A 192.0.2.33"},
		{"PTR mapped", nil, "33.2.0.192.in-addr.arpa.", dns.TypePTR, "NOERROR PTR mapped.example.org."},
		{"top-level name", nil, "web.", dns.TypeA, "NOERROR A 192.0.2.10"},
		{"comment is no name", nil, "loop.", dns.TypeA, "error"},
		{"PTR", nil, "11.2.0.192.IN-ADDR.arpa.", dns.TypePTR, "NOERROR PTR web.example.org."},
		{"PTR of two", nil, "10.2.0.192.in-addr.arpa.", dns.TypePTR, "NOERROR PTR web.example.org. PTR web."},
		{"PTR IPv6", nil, "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa.", dns.TypePTR,
			"NOERROR PTR localhost."},
		{"PTR unknown", nil, "9.2.0.192.in-addr.arpa.", dns.TypePTR, "not mine"},
		{"PTR partial", nil, "2.0.192.in-addr.arpa.", dns.TypePTR, "not mine"},
		{"PTR outside the zones", restrict, "11.2.0.192.in-addr.arpa.", dns.TypePTR, "NOERROR PTR web.example.org."},
		{"no_reverse", func(c *HostsConfig) { c.NoReverse = true }, "11.2.0.192.in-addr.arpa.", dns.TypePTR, "not mine"},
		{"outside", restrict, "localhost.", dns.TypeA, "not mine"},
		{"inside", restrict, "web.example.org.", dns.TypeA, "NOERROR A 192.0.2.10 A 192.0.2.11"},
		{"PTR to a name outside", restrict, "1.0.0.10.in-addr.arpa.", dns.TypePTR, "not mine"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newTestHosts(t, tt.change)
			m, err := h.Exchange(t.Context(), asking(tt.q, tt.qtype))
			if got := outcome(m, err); got != tt.want {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
			if err == nil && m.Question[0].Name != tt.q {
				t.Errorf("question %v", m.Question)
			}
			for _, rr := range append([]dns.RR(nil), answerOf(m)...) {
				if rr.Header().Ttl != 77 || rr.Header().Name != tt.q {
					t.Errorf("record %v", rr)
				}
			}
		})
	}
	chaos := asking("localhost.", dns.TypeA)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	if _, err := newTestHosts(t, nil).Exchange(t.Context(), chaos); !errors.Is(err, ErrNotMine) {
		t.Errorf("class CH: %v", err)
	}
}

func answerOf(m *dns.Msg) []dns.RR {
	if m == nil {
		return nil
	}
	return m.Answer
}

func TestHostsReload(t *testing.T) {
	var text atomic.Pointer[string] // nil: no file
	denied := false
	var log bytes.Buffer
	h := newTestHosts(t, func(c *HostsConfig) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.ReadFile = func(path string) ([]byte, error) {
			switch s := text.Load(); {
			case denied:
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
			case s == nil:
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			default:
				return []byte(*s), nil
			}
		}
	})
	if !strings.Contains(log.String(), "file=hosts") {
		t.Errorf("no warning: %q", log.String())
	}
	now := func() string {
		return outcome(h.Exchange(t.Context(), asking("new.example.org.", dns.TypeA)))
	}
	step := func(name string, wantErr bool, want string) {
		t.Helper()
		if err := h.Reload(); (err != nil) != wantErr {
			t.Errorf("%s: Reload: %v", name, err)
		}
		if got := now(); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got := outcome(h.Exchange(t.Context(), asking("inline.example.org.", dns.TypeA))); got != "NOERROR A 192.0.2.20" {
			t.Errorf("%s: inline entry: %q", name, got)
		}
	}
	one, two := "192.0.2.1 new.example.org", "192.0.2.2 new.example.org"
	step("still missing", false, "error")
	text.Store(&one)
	step("appears", false, "NOERROR A 192.0.2.1")
	text.Store(&two)
	step("changes", false, "NOERROR A 192.0.2.2")
	denied = true
	step("unreadable", true, "NOERROR A 192.0.2.2")
	denied = false
	text.Store(nil)
	step("goes", true, "NOERROR A 192.0.2.2")
	step("has gone", false, "NOERROR A 192.0.2.2")
	text.Store(&one)
	step("returns", false, "NOERROR A 192.0.2.1")
}

func TestNewHostsErrors(t *testing.T) {
	denied := func(string) ([]byte, error) { return nil, fs.ErrPermission }
	if _, err := NewHosts(HostsConfig{Path: "hosts", ReadFile: denied}); err == nil {
		t.Error("an unreadable file is no error")
	}
	if _, err := NewHosts(HostsConfig{Inline: []HostsEntry{{Names: []string{"x."}}}}); err == nil {
		t.Error("an entry without address is no error")
	}
	h, err := NewHosts(HostsConfig{Path: t.TempDir() + "/hosts"})
	if err != nil || h.Reload() != nil {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzHosts(f *testing.F) {
	f.Add([]byte(hostsText))
	f.Add([]byte("::ffff:192.0.2.1 a b\\032c .\n0.0.0.0 x..y\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		table := newHostsTable([]string{"."}, true)
		table.parse(text)
		for name, addrs := range table.addrs {
			for _, a := range addrs {
				if wild := strings.HasPrefix(name, "*."); slices.Contains(table.names[a], name) == wild {
					t.Fatalf("%s is %v, but %v is %v", name, a, a, table.names[a])
				}
				back, err := dns.ReverseAddr(a.String())
				if err != nil {
					t.Fatal(err)
				}
				if got := reverseAddr(back); got != a && got != a.Unmap() {
					t.Fatalf("%s stands for %v, got %v", back, a, got)
				}
			}
		}
	})
}
