package bpf

import (
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

// TestPutAgain: nodens puts an answer for each hit of its own. An answer that is in the
// table already costs no memory.
func TestPutAgain(t *testing.T) {
	listener := netip.MustParseAddrPort("169.254.20.10:53")
	table := newTable()
	answer := &Answer{
		Generation: table.Listen([]netip.AddrPort{listener}), Listener: listener, Left: time.Minute,
		Question: cache.AppendKey(nil, []byte("\x01a\x00"), dns.TypeA, dns.ClassINET, false, false, false),
	}
	if !table.Put(answer) {
		t.Fatal("the table does not take the answer")
	}
	if n := testing.AllocsPerRun(100, func() { table.Put(answer) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
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
