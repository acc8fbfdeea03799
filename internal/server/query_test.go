package server

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// pack packs m or fails the test.
func pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParse(t *testing.T) {
	plain := pack(t, query("www.Example.org.", dns.TypeA))
	edns := pack(t, query("www.example.org.", dns.TypeAAAA, withEDNS(4096, true)))
	change := func(b []byte, f func([]byte) []byte) []byte { return f(bytes.Clone(b)) }
	set := func(off int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[off:], v); return b }
	}
	longest := strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61) + "." // 255 bytes
	optAt := len(plain)                                                                       // same length of question
	for _, c := range []struct {
		name string
		msg  []byte
		want verdict
	}{
		{"plain", plain, accept},
		{"edns", edns, accept},
		{"root", pack(t, query(".", dns.TypeNS)), accept},
		{"longest name", pack(t, query(longest, dns.TypeA)), accept},
		{"unknown type", pack(t, query("example.org.", 65280)), accept},
		{"empty", nil, discard},
		{"part of a header", plain[:11], discard},
		{"a response", change(plain, set(2, 0x81)), discard},
		{"header only, no question", change(plain[:12], set(4, 0, 0)), formErr},
		{"header only, question counted", plain[:12], formErr},
		{"two questions", change(plain, set(4, 0, 2)), formErr},
		{"status opcode", change(plain, set(2, 2<<3)), notImp},
		{"notify opcode", change(plain, set(2, 4<<3)), notImp},
		{"opcode 15", change(plain, set(2, 15<<3)), notImp},
		{"compressed question", change(plain, set(12, 0xc0, 12)), formErr},
		{"label type 01", change(plain, set(12, 0x41)), formErr},
		{"name over 255 bytes", append(append(plain[:12:12], bytes.Repeat([]byte("\x3faaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffff012"), 4)...), 0, 0, 1, 0, 1), formErr},
		{"question truncated in its type", plain[:len(plain)-3], formErr},
		{"no answer, one counted", change(plain, set(7, 1)), formErr},
		{"two OPT records", change(append(edns[:len(edns):len(edns)], edns[optAt:]...), set(11, 2)), formErr},
		{"OPT not at the root", change(append(append(plain[:optAt:optAt], 1, 'x'), edns[optAt:]...), set(11, 1)), formErr},
		{"OPT in the answer section", change(edns, set(6, 0, 1, 0, 0, 0, 0)), formErr},
		{"option longer than OPT", change(append(edns[:len(edns):len(edns)], 0, 3, 0, 9), set(len(edns)-1, 4)), formErr},
		{"EDNS version 1", change(edns, set(optAt+6, 1)), badVers},
		{"NXNAME", pack(t, query("example.org.", dns.TypeNXNAME)), nxnameType},
		{"type OPT", pack(t, query("example.org.", dns.TypeOPT)), formErr},
		{"zone transfer", pack(t, query("example.org.", dns.TypeAXFR)), refuse},
		{"id.server", pack(t, query("Id.Server.", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })), identify},
		{"class CH", pack(t, query("version.bind.", dns.TypeTXT, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })), refuse},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := Query{memory: new(lookupMemory)}
			if got := q.parse(c.msg); got != c.want {
				t.Errorf("verdict %d, want %d", got, c.want)
			}
		})
	}
}

func TestParseFields(t *testing.T) {
	m := query("wWw.eXample.org.", dns.TypeHTTPS, withEDNS(1400, true))
	m.Id, m.CheckingDisabled = 4711, true
	q := Query{memory: new(lookupMemory)}
	msg := pack(t, m)
	if v := q.parse(msg); v != accept {
		t.Fatalf("verdict %d", v)
	}
	if got := q.presentation(); got != "wWw.eXample.org." {
		t.Errorf("name %q", got)
	}
	if string(q.lower) != "\x03www\x07example\x03org\x00" {
		t.Errorf("lower %q", q.lower)
	}
	if q.id != 4711 || q.qtype != dns.TypeHTTPS || q.qclass != dns.ClassINET || !q.opt || !q.do || !q.cd || q.udpSize != 1400 || int(q.size) != len(msg) {
		t.Errorf("parsed %+v", q)
	}
}

// TestCopyWithoutKey copies a query for which no key was made, after a query with a
// longer name had one.
func TestCopyWithoutKey(t *testing.T) {
	q := Query{memory: new(lookupMemory)}
	q.parse(pack(t, query("a.very.long.name.example.org.", dns.TypeA)))
	q.makeKey()
	q.parse(pack(t, query("example.org.", dns.TypeA)))
	var c Query
	q.copyTo(&c)
	if c.presentation() != "example.org." || len(c.key) != 0 {
		t.Errorf("copied %q with the key %q", c.presentation(), c.key)
	}
}

// TestParseTruncations truncates valid queries at every length. Only the whole
// query is accepted. With a whole header, the verdict is FORMERR.
func TestParseTruncations(t *testing.T) {
	for _, m := range []*dns.Msg{
		query("a.b.example.org.", dns.TypeA),
		query("a.b.example.org.", dns.TypeA, withEDNS(1232, true), func(m *dns.Msg) {
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}}
		}),
	} {
		whole := pack(t, m)
		for n := range len(whole) {
			want := formErr
			if n < headerLen {
				want = discard
			}
			q := Query{memory: new(lookupMemory)}
			if got := q.parse(whole[:n]); got != want {
				t.Errorf("%d of %d bytes: verdict %d, want %d", n, len(whole), got, want)
			}
		}
	}
}

// FuzzParse compares the parser with the library. The library unpacks an accepted
// query to the same question, and it unpacks every error reply.
func FuzzParse(f *testing.F) {
	f.Add(pack(f, query("www.example.org.", dns.TypeA)))
	f.Add(pack(f, query("www.example.org.", dns.TypeAAAA, withEDNS(4096, true))))
	f.Add(pack(f, query(".", dns.TypeANY, withEDNS(0, false))))
	f.Add(pack(f, query("x.y.", dns.TypeNXNAME)))
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, msg []byte) {
		q := Query{memory: new(lookupMemory)}
		v := q.parse(bytes.Clone(msg))
		if v == discard {
			return
		}
		if v != accept {
			var r dns.Msg
			if err := r.Unpack(appendVerdict(nil, &q, v, "me")); err != nil {
				t.Fatalf("reply to verdict %d: %v", v, err)
			}
			if r.Id != binary.BigEndian.Uint16(msg) || !r.Response || !r.RecursionAvailable {
				t.Fatalf("reply header %+v", r.MsgHdr)
			}
			return
		}
		name, off, err := dns.UnpackDomainName(msg, headerLen)
		if err != nil || name != q.presentation() || binary.BigEndian.Uint16(msg[off:]) != q.qtype {
			t.Fatalf("name %q, the library has %q, %v", q.presentation(), name, err)
		}
		if len(q.name) != len(q.lower) || len(q.name) > maxNameLen {
			t.Fatalf("name of %d bytes", len(q.name))
		}
	})
}

func TestAppendLower(t *testing.T) {
	var all []byte
	for c := range 256 {
		all = append(all, byte(c))
	}
	got := appendLower([]byte("AB"), all)
	if string(got[:2]) != "AB" {
		t.Errorf("prefix changed to %q", got[:2])
	}
	for c, l := range got[2:] {
		want := byte(c)
		if 'A' <= c && c <= 'Z' {
			want += 'a' - 'A'
		}
		if l != want {
			t.Errorf("%#x became %#x, want %#x", c, l, want)
		}
	}
}
