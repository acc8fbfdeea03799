package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Every combination of name, type, class, DO and CD has its own answer.
func TestKeySeparation(t *testing.T) {
	f := newFixture(t, Policy{})
	type question struct {
		name          string
		qtype, qclass uint16
		do, cd        bool
	}
	var questions []question
	for _, name := range []string{"a.example.", "b.example.", "example.", "."} {
		for _, qtype := range []uint16{dns.TypeTXT, dns.TypeSPF} {
			for _, qclass := range []uint16{dns.ClassINET, dns.ClassCHAOS} {
				for flags := range 4 {
					questions = append(questions, question{name, qtype, qclass, flags&1 != 0, flags&2 != 0})
				}
			}
		}
	}
	key := func(q question) []byte { return AppendKey(nil, wireName(q.name), q.qtype, q.qclass, q.do, q.cd, false) }
	entries := make(map[string]bool)
	identity := func(e *Entry) string { return string(e.buf) + string(e.flags) }
	for _, q := range questions {
		if h := f.get(key(q)); h.State != Miss {
			t.Fatalf("%+v answered by another question: %+v", q, h)
		}
		m := success(t, fmt.Sprintf("%s 60 %s %s x", q.name, dns.ClassToString[q.qclass], dns.TypeToString[q.qtype]))
		m.Question[0].Qclass = q.qclass
		entries[identity(f.put(t, key(q), m))] = true
	}
	for _, q := range questions {
		if h := f.get(key(q)); h.State != Fresh || !entries[identity(h.Entry)] {
			t.Errorf("%+v: %+v", q, h)
		} else {
			delete(entries, identity(h.Entry))
		}
	}
}

func TestPutOfAnotherQuestion(t *testing.T) {
	m := success(t, "www.example. 60 IN A 192.0.2.1")
	keys := map[string][]byte{
		"name":       keyFor("ww.example.", dns.TypeA),
		"child":      keyFor("a.www.example.", dns.TypeA),
		"parent":     keyFor("example.", dns.TypeA),
		"type":       keyFor("www.example.", dns.TypeAAAA),
		"class":      AppendKey(nil, wireName("www.example."), dns.TypeA, dns.ClassCHAOS, false, false, false),
		"upper case": AppendKey(nil, []byte("\x03WWW\x07example\x00"), dns.TypeA, dns.ClassINET, false, false, false),
		"empty":      nil,
		"short":      {0, 0, 1},
		"no root":    []byte("\x03www\x00\x01\x00\x01\x00"),
		"pointer":    []byte("\xc0\x0c\x00\x01\x00\x01\x00"),
		"long":       make([]byte, 300),
	}
	for name, key := range keys {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Policy{Zones: []string{"."}})
			e := f.put(t, key, m)
			if got := unpackAged(t, e, 0); len(got.Answer) != 1 {
				t.Errorf("no answer to send: %v", got)
			}
			if h := f.get(key); h.State != Miss || f.store.Stats().Entries != 0 {
				t.Errorf("stored: %+v", h)
			}
		})
	}
}

// An upstream may echo the question in any case. It is stored in lower case.
func TestQuestionIsStoredInLowerCase(t *testing.T) {
	f := newFixture(t, Policy{})
	m := success(t, "WwW.eXample. 60 IN A 192.0.2.1")
	f.put(t, keyOf(m), m)
	h := f.get(keyFor("www.example.", dns.TypeA))
	if h.State != Fresh {
		t.Fatalf("got %+v", h)
	}
	if q := unpackAged(t, h.Entry, 0).Question[0].Name; q != "www.example." {
		t.Errorf("question = %s", q)
	}
}

func TestReplacement(t *testing.T) {
	const name = "www.example."
	data := func() *dns.Msg { return success(t, name+" 60 IN A 192.0.2.1") }
	newer := func() *dns.Msg { return success(t, name+" 60 IN A 192.0.2.2") }
	denied := func() *dns.Msg { return nxdomain(t, name, soa60of300) }
	zero := func() *dns.Msg { return success(t, name+" 0 IN A 192.0.2.1") }
	noSOA := func() *dns.Msg { return nxdomain(t, name, "example. 300 IN SOA ns. root. 1 2 3 4 0") }
	refused := func() *dns.Msg { m := data(); m.Rcode = dns.RcodeRefused; return m }
	tests := []struct {
		name          string
		first, second *dns.Msg
		want          int // 1: first is found, 2: second; 0: none
	}{
		{"data by data", data(), newer(), 2},
		{"data by denial", data(), denied(), 2},
		{"denial by data", denied(), data(), 2},
		{"denial by denial", denied(), denied(), 2},
		{"data by an uncacheable answer", data(), zero(), 0},
		{"denial by an uncacheable answer", denied(), zero(), 0},
		{"data by an uncacheable denial", data(), noSOA(), 0},
		{"data by REFUSED", data(), refused(), 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, Policy{StaleFor: time.Hour})
			key := keyFor(name, dns.TypeA)
			put := []*Entry{nil, f.put(t, key, tt.first), f.put(t, key, tt.second)}
			h := f.get(key)
			if !same(h.Entry, put[tt.want]) {
				t.Errorf("found %+v, want the entry of put %d", h, tt.want)
			}
			wantEntries := min(tt.want, 1)
			if n := f.store.Stats().Entries; n != wantEntries {
				t.Errorf("%d entries, want %d", n, wantEntries)
			}
		})
	}
}

func TestEntryOfAnswer(t *testing.T) {
	m := success(t, "www.example. 60 IN A 192.0.2.1")
	m.Id, m.AuthenticatedData, m.Authoritative, m.RecursionAvailable = 4711, true, true, true
	m.SetEdns0(4096, true)
	m.Extra = append(m.Extra, &dns.TSIG{Hdr: dns.RR_Header{Name: "k.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY}, Algorithm: dns.HmacSHA256})
	m.Extra = append(m.Extra, parseRRs(t, []string{"www.example. 60 IN AAAA 2001:db8::1"})...)
	e, err := NewEntry(m)
	if err != nil {
		t.Fatal(err)
	}
	got := unpackAged(t, e, 0)
	if got.Id != 0 || !got.AuthenticatedData || !got.Authoritative || !got.RecursionAvailable {
		t.Errorf("header = %+v", got.MsgHdr)
	}
	if len(got.Extra) != 1 || got.Extra[0].Header().Rrtype != dns.TypeAAAA {
		t.Errorf("additional = %v", got.Extra)
	}
	got.Compress = true
	if len(e.Msg()) != got.Len() {
		t.Errorf("%d bytes, want the compressed size %d", len(e.Msg()), got.Len())
	}
	if len(m.Extra) != 3 || m.Id != 4711 || m.Compress {
		t.Errorf("NewEntry changed the message: %v", m)
	}
}

func TestUnpackable(t *testing.T) {
	long := success(t, "www.example. 60 IN A 192.0.2.1")
	for range 5000 {
		long.Answer = append(long.Answer, long.Answer[0])
	}
	nilRecord := success(t, "www.example. 60 IN A 192.0.2.1")
	nilRecord.Ns = []dns.RR{nil}
	badName := success(t, "www.example. 60 IN A 192.0.2.1")
	badName.Answer[0].Header().Name = "a..b."
	cutRdata := nxdomain(t, "no.example.", soa60of300)
	cutRdata.Ns[0].(*dns.SOA).Ns = "" // as miekg/dns parses an SOA with RDLENGTH 0
	badRcode := success(t, "www.example. 60 IN A 192.0.2.1")
	badRcode.Rcode = 0x1000
	for name, m := range map[string]*dns.Msg{
		"none": nil, "too long": long, "nil record": nilRecord, "bad name": badName, "bad rcode": badRcode, "cut RDATA": cutRdata,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Policy{ServFail: time.Second})
			key := keyFor("www.example.", dns.TypeA)
			if e, err := f.Put(key, m); err == nil || e != nil {
				t.Errorf("Put = %v, %v", e, err)
			}
			if e, err := f.PutFailure(key, m); err == nil || e != nil {
				t.Errorf("PutFailure = %v, %v", e, err)
			}
			if n := f.store.Stats().Entries; n != 0 {
				t.Errorf("%d entries", n)
			}
		})
	}
}

func TestZonesAndDisabled(t *testing.T) {
	disabled := Class{Disabled: true}
	inLocal := Class{Disabled: true, DisabledOnly: []string{"cluster.local."}}
	ignored := Class{DisabledOnly: []string{"cluster.local."}}
	tests := []struct {
		name   string
		policy Policy
		qname  string
		data   bool
		denial bool
	}{
		{"all", Policy{}, "a.cluster.local.", true, true},
		{"inside the zones", Policy{Zones: []string{"example.", "Cluster.Local."}}, "a.b.cluster.local.", true, true},
		{"the zone itself", Policy{Zones: []string{"cluster.local."}}, "cluster.local.", true, true},
		{"above the zone", Policy{Zones: []string{"cluster.local."}}, "local.", false, false},
		{"same suffix, other label", Policy{Zones: []string{"cluster.local."}}, "a.xcluster.local.", false, false},
		{"root zone", Policy{Zones: []string{"."}}, "a.example.", true, true},
		{"invalid zone name", Policy{Zones: []string{"a..b."}}, "a.example.", false, false},
		{"no success", Policy{Success: disabled}, "a.example.", false, true},
		{"no denial", Policy{Denial: disabled}, "a.example.", true, false},
		{"no success in a zone, inside", Policy{Success: inLocal}, "a.cluster.local.", false, true},
		{"no success in a zone, outside", Policy{Success: inLocal}, "a.example.", true, true},
		{"zones without disabled", Policy{Success: ignored}, "a.cluster.local.", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, tt.policy)
			data := success(t, tt.qname+" 60 IN A 192.0.2.1")
			f.put(t, keyOf(data), data)
			if got := f.get(keyOf(data)).State == Fresh; got != tt.data {
				t.Errorf("data stored: %v", got)
			}
			denied := nxdomain(t, tt.qname, soa60of300)
			f.put(t, keyOf(denied), denied)
			if got := f.get(keyOf(denied)).State == Fresh; got != tt.denial {
				t.Errorf("denial stored: %v", got)
			}
		})
	}
}

func TestTTLsOutsideZonesAreNotClamped(t *testing.T) {
	p := coreDNS()
	p.Zones = []string{"cluster.local."}
	f := newFixture(t, p)
	m := success(t, "www.example. 86400 IN A 192.0.2.1")
	if got := ttlsOf(unpackAged(t, f.put(t, keyOf(m), m), 0)); got[0] != 86400 {
		t.Errorf("TTL = %d", got[0])
	}
}
