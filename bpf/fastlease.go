package bpf

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// LeaseTable holds the clients that the program answers, and the queries that it has
// passed lately. A lease is for an address on one interface: replies go to the
// interface that sent the query. The methods are safe for concurrent use and make no system
// call.
type LeaseTable struct {
	seed  uint64
	clock fastClock
	asked func(list int, client netip.Addr, n uint32) // see FastpathConfig

	mu      sync.Mutex
	buckets []fastLeaseBucket // shared with the kernel, and so are hits and notes
	hits    []fastLeaseHits   // of each way of each bucket
	notes   []uint64          // written by the kernel only; see note in fastpath.bpf.c
}

// Lease lets the program answer the client on the interface for the given time from
// now. If too many clients share a bucket, it evicts the lease that ends first.
func (t *LeaseTable) Lease(ifindex int, client netip.Addr, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	addr, now := words(client), t.clock.now()
	bucket, way := t.bucket(ifindex, addr), 0
	b := &t.buckets[bucket]
	for i := range b.Ways {
		l := &b.Ways[i]
		if l.Ifindex == uint32(ifindex) && l.Addr == addr {
			atomic.StoreUint64(&l.Until, uint64(now+int64(d)))
			return
		}
		if l.Until < b.Ways[way].Until {
			way = i
		}
	}
	t.report(bucket, way)
	b.Ways[way].set(uint32(ifindex), addr, uint64(now+int64(d)))
}

// PassedOn returns the interface on which the program has passed a query of the client
// with the ID within the last quarter of a second, 0 if it knows none.
func (t *LeaseTable) PassedOn(client netip.AddrPort, id uint16) (ifindex int) {
	addr := words(client.Addr())
	h := mix(mix(t.seed, pair(addr[0], addr[1])), pair(addr[2], addr[3]))
	h = mix(h, uint64(networkPort(client.Port()))|uint64(networkPort(id))<<16)
	for now, ago := uint64(t.clock.now())>>fastLimitsNOTE_SHIFT, uint64(0); ago < 2; ago++ {
		h := mix(h, now-ago)
		if n := atomic.LoadUint64(&t.notes[h%uint64(len(t.notes))]); n>>32 == h>>32 {
			return int(uint32(n))
		}
	}
	return 0
}

// Revoke ends all leases.
func (t *LeaseTable) Revoke() { t.revoke(func(uint32) bool { return true }) }

// revoke ends the leases of some interfaces.
func (t *LeaseTable) revoke(of func(ifindex uint32) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.buckets {
		for w := range t.buckets[i].Ways {
			if l := &t.buckets[i].Ways[w]; l.Ifindex != 0 && of(l.Ifindex) {
				t.report(i, w)
				l.set(0, [4]uint32{}, 0)
			}
		}
	}
}

// Leases returns the number of leases in force on each interface that has some.
func (t *LeaseTable) Leases() map[int]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, now := make(map[int]int), uint64(t.clock.now())
	for i := range t.buckets {
		for w := range t.buckets[i].Ways {
			if l := &t.buckets[i].Ways[w]; l.Until > now {
				n[int(l.Ifindex)]++
			}
		}
	}
	return n
}

// LeaseLists is the number of lists by which a client's answers are counted.
const LeaseLists = int(fastLimitsLEASE_LISTS)

// Report reports the answers of all clients, see FastpathConfig.Asked.
func (t *LeaseTable) Report() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.buckets {
		for w := range t.buckets[i].Ways {
			if t.buckets[i].Ways[w].Ifindex != 0 {
				t.report(i, w)
			}
		}
	}
}

// report reports the answers to the client of a lease. t.mu is held.
func (t *LeaseTable) report(bucket, way int) {
	l := &t.buckets[bucket].Ways[way]
	lists := &t.hits[bucket*len(t.buckets[bucket].Ways)+way].Lists
	for i := range lists {
		if atomic.LoadUint32(&lists[i]) == 0 {
			continue
		}
		if n := atomic.SwapUint32(&lists[i], 0); t.asked != nil && l.Ifindex != 0 {
			t.asked(i, netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&l.Addr))).Unmap(), n)
		}
	}
}

// bucket returns the index of a client's bucket.
func (t *LeaseTable) bucket(ifindex int, addr [4]uint32) int {
	h := mix(mix(t.seed, pair(addr[0], addr[1])), pair(addr[2], addr[3]))
	h = mix(h, uint64(uint32(ifindex)))
	return int(h % uint64(len(t.buckets)))
}

// set writes a lease so that the program sees all of it or none.
func (l *fastLease) set(ifindex uint32, addr [4]uint32, until uint64) {
	atomic.AddUint32(&l.Seq, 1)
	l.Ifindex, l.Addr = ifindex, addr
	atomic.StoreUint64(&l.Until, until)
	atomic.AddUint32(&l.Seq, 1)
}
