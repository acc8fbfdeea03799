package bpf

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// Each hit of the program is reported once, in whatever order the answers are read,
// evicted and withdrawn.
func TestHitsAreReported(t *testing.T) {
	type call struct {
		list   int
		name   string
		denied bool
	}
	got, want := make(map[call]uint32), make(map[call]uint32)
	table := newTable()
	table.answered = func(list int, name []byte, denied bool, n uint32) { got[call{list, string(name), denied}] += n }
	listener := netip.MustParseAddrPort("169.254.20.10:53")
	generation := table.Listen([]netip.AddrPort{listener})
	key := func(name string) []byte {
		return cache.AppendKey(nil, []byte(name), dns.TypeA, dns.ClassINET, false, false, false)
	}
	put := func(i int) string {
		name := fmt.Sprintf("\x03n%02d\x00", i)
		a := &Answer{Generation: generation, Listener: listener, Left: time.Minute, Question: key(name), List: 1 + i%2}
		if i%3 == 0 {
			a.Header[1] = dns.RcodeNameError
		}
		for !table.Put(a) { // eviction gives up after a few tries
		}
		return name
	}
	hit := func(i int, name string, n uint32) {
		table.each(key(name), func(_ *uint64, number uint32) {
			table.head(number).Hits += n
			want[call{1 + i%2, name, i%3 == 0}] += n
		})
	}
	returned := uint32(0)
	for i := range 40 {
		name := put(i)
		hit(i, name, 5)
		if i%2 == 0 {
			table.Report()
		}
		hit(i, name, 2)
		switch i % 5 {
		case 0:
			returned += table.Hits(key(name))
			hit(i, name, 1)
		case 1:
			table.Withdraw(key(name))
		}
	}
	table.Listen(nil)
	if returned != 7*8 {
		t.Errorf("Hits returned %d, want %d", returned, 7*8)
	}
	for c, n := range want {
		if got[c] != n {
			t.Errorf("%+v: %d reported, want %d", c, got[c], n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d names reported, want %d", len(got), len(want))
	}
}
