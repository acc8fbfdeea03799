package upstream

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// newQuery makes a query with an unpredictable ID.
func (q *question) newQuery(edns bool) *query {
	out := &query{question: q}
	if edns {
		out.size = udpSize
	}
	if err := make(idSet).add(out); err != nil {
		panic(err)
	}
	return out
}

func (q *query) datagram() []byte { return q.pack(nil)[2:] }

func TestMatchAcceptsAnyCase(t *testing.T) {
	m := asking("wWw.eXample.org.", dns.TypeA)
	q, err := newQuestion(m)
	if err != nil {
		t.Fatal(err)
	}
	out := q.newQuery(true)
	sent := new(dns.Msg)
	if err := sent.Unpack(out.datagram()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"www.example.org.", "WWW.EXAMPLE.ORG.", "wWw.eXample.org."} {
		b := reply(sent, func(m *dns.Msg) { m.Question[0].Name = name })
		if _, v := out.match(b); v != accepted {
			t.Errorf("%s: %s", name, v)
		}
	}
	// '@' and '`' differ in the same bit as upper and lower case do.
	q, _ = newQuestion(asking("a@b.example.", dns.TypeA))
	out = q.newQuery(false)
	b := append([]byte(nil), out.datagram()...)
	b[2] |= 0x80
	if _, v := out.match(b); v != accepted {
		t.Fatalf("itself: %s", v)
	}
	b[14] = '`'
	if _, v := out.match(b); v != wrongQuestion {
		t.Errorf("` for @: %s", v)
	}
}

func FuzzMatch(f *testing.F) {
	q, err := newQuestion(asking("www.example.org.", dns.TypeA))
	if err != nil {
		f.Fatal(err)
	}
	out := q.newQuery(true)
	out.id = 0x1234
	sent := asking("www.example.org.", dns.TypeA)
	sent.Id = out.id
	f.Add(answer(sent))
	f.Add(reply(sent, func(m *dns.Msg) { m.Truncated = true; withEDE(22, "x")(m) }))
	f.Add(answer(sent)[:30])
	f.Add([]byte{0x12, 0x34, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, v := out.match(b)
		if (m != nil) != (v == accepted) {
			t.Fatalf("message %v with verdict %s", m, v)
		}
		if m == nil {
			return
		}
		if m.Id != out.id || !m.Response || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
			t.Fatalf("accepted\n%v", m)
		}
		got := m.Question[0]
		if !strings.EqualFold(got.Name, q.Name) || got.Qtype != q.Qtype || got.Qclass != q.Qclass {
			t.Fatalf("accepted another question\n%v", m)
		}
		kindOf(m)
		q.restore(m)
		if m.IsEdns0() != nil || m.Question[0] != q.Question {
			t.Fatalf("restored\n%v", m)
		}
	})
}
