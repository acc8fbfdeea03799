package bpf

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// newTable makes a table that no kernel reads.
func newTable() *AnswerTable {
	t := &AnswerTable{settings: new(fastSettings), buckets: make([]fastBucket, 2)}
	t.small.cells, t.large.cells = make([]fastSmallCell, 8), make([]fastLargeCell, 1)
	t.small.init()
	t.large.init()
	return t
}

// TestPutAllocatesNothing: nodens puts an answer for each hit of its own, also one that is
// in the table, does not fit, or finds no room.
func TestPutAllocatesNothing(t *testing.T) {
	listener := netip.MustParseAddrPort("169.254.20.10:53")
	table := newTable()
	answer := &Answer{
		Generation: table.Listen([]netip.AddrPort{listener}), Listener: listener, Left: time.Minute,
		Question: cache.AppendKey(nil, []byte("\x01a\x00"), dns.TypeA, dns.ClassINET, false, false, false),
	}
	put := func(name string, a Answer, want bool) {
		t.Helper()
		if n := testing.AllocsPerRun(2, func() { // eviction halves hits up to 8 times a Put
			if table.Put(&a) != want {
				t.Errorf("%s: taken %t", name, !want)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	put("in the table", *answer, true)
	large := *answer
	large.Question = cache.AppendKey(nil, []byte("\x01b\x00"), dns.TypeA, dns.ClassINET, false, false, false)
	large.Body = make([]byte, fastLimitsLARGE_DATA+1)
	put("too large", large, false)
	large.Body = large.Body[:fastLimitsLARGE_DATA]
	put("large", large, true)
	table.each(large.Question, func(_ *uint64, number uint32) { table.head(number).Hits = math.MaxUint32 })
	large.Question = cache.AppendKey(nil, []byte("\x01c\x00"), dns.TypeA, dns.ClassINET, false, false, false)
	put("no room", large, false)
}

// TestGenerationsOfTables: a reload may replace the table. A reader that still has the
// configuration before must not put its answers into the new table.
func TestGenerationsOfTables(t *testing.T) {
	listener := netip.MustParseAddrPort("169.254.20.10:53")
	answer := &Answer{
		Generation: newTable().Listen([]netip.AddrPort{listener}), Listener: listener, Left: time.Minute,
		Question: cache.AppendKey(nil, []byte("\x01a\x00"), dns.TypeA, dns.ClassINET, false, false, false),
	}
	table := newTable()
	now := table.Listen([]netip.AddrPort{listener})
	if table.Put(answer) {
		t.Error("the new table takes an answer of the old one's generation")
	}
	answer.Generation = now
	if !table.Put(answer) || table.Entries() != 1 {
		t.Error("the new table does not take its own answer")
	}
}
