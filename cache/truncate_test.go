package cache

import (
	"fmt"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// large returns a message with records in all sections. Those in the additional
// section form three RRsets of two records.
func large(t testing.TB) *dns.Msg {
	var answer, extra []string
	for i := range 20 {
		answer = append(answer, fmt.Sprintf("www.example.org. 60 IN A 192.0.2.%d", i))
	}
	for i := range 3 {
		for j := range 2 {
			extra = append(extra, fmt.Sprintf("ns%d.example.org. 60 IN AAAA 2001:db8::%d", i, j))
		}
	}
	authority := []string{"example.org. 60 IN NS ns0.example.org.", "example.org. 60 IN NS ns1.example.org."}
	return reply(t, "www.example.org.", dns.TypeA, dns.RcodeSuccess, answer, authority, extra)
}

func newEntry(t testing.TB, m *dns.Msg) *Entry {
	t.Helper()
	e, err := NewEntry(m)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// At every limit, the result fits, unpacks, is a prefix of the full answer, and
// has as many records as possible.
func TestTruncateAtEveryLimit(t *testing.T) {
	m := large(t)
	e := newEntry(t, m)
	full := unpackAged(t, e, 0)
	var all []dns.RR
	for _, section := range [][]dns.RR{full.Answer, full.Ns, full.Extra} {
		all = append(all, section...)
	}
	question := questionEnd(e.Msg())
	for limit := range len(e.Msg()) + 2 {
		msg := e.Truncate(slices.Clone(e.Msg()), limit)
		if len(msg) > max(limit, question) {
			t.Fatalf("limit %d: %d bytes", limit, len(msg))
		}
		got := new(dns.Msg)
		if err := got.Unpack(msg); err != nil {
			t.Fatalf("limit %d: %v", limit, err)
		}
		n := len(got.Answer) + len(got.Ns) + len(got.Extra)
		required := len(full.Answer) + len(full.Ns)
		if got.Truncated != (n < required) {
			t.Errorf("limit %d: %d records, TC = %v", limit, n, got.Truncated)
		}
		if n < len(all) && n != fitting(e, limit, required) {
			t.Errorf("limit %d: %d records, %d fit", limit, n, fitting(e, limit, required))
		}
		for i, rr := range slices.Concat(got.Answer, got.Ns, got.Extra) {
			if rr.String() != all[i].String() {
				t.Fatalf("limit %d: record %d = %v, want %v", limit, i, rr, all[i])
			}
		}
		got.Answer, got.Ns, got.Extra, got.Truncated = full.Answer, full.Ns, full.Extra, full.Truncated
		if got.String() != full.String() {
			t.Errorf("limit %d: header or question changed", limit)
		}
	}
}

// fitting counts the records within limit, and those behind required in pairs.
func fitting(e *Entry, limit, required int) int {
	n := 0
	for n < e.records() && e.end(n) <= limit {
		n++
	}
	if n > required {
		n -= (n - required) % 2
	}
	return n
}

func TestTruncateChangedCopy(t *testing.T) {
	e := newEntry(t, large(t))
	msg := slices.Clone(e.Msg())
	msg[0], msg[1], msg[13] = 0x12, 0x34, 'W' // ID and case
	e.AgeTTLs(msg, 10)
	got := new(dns.Msg)
	if err := got.Unpack(e.Truncate(msg, 100)); err != nil {
		t.Fatal(err)
	}
	if got.Id != 0x1234 || got.Question[0].Name != "Www.example.org." || got.Answer[0].Header().Ttl != 50 || !got.Truncated {
		t.Errorf("got %v", got)
	}
	if again := unpackAged(t, e, 0); again.Truncated || len(again.Answer) != 20 {
		t.Error("the entry itself was changed")
	}
}

func TestTruncateKeepsFittingMessage(t *testing.T) {
	e := newEntry(t, large(t))
	full := slices.Clone(e.Msg())
	if got := e.Truncate(full, len(full)); !slices.Equal(got, e.Msg()) {
		t.Error("changed")
	}
	if got := e.Truncate(full[:20], 15); len(got) != 20 {
		t.Error("a message of another entry was truncated")
	}
}
