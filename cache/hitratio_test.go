package cache

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// evictor is an eviction policy over names, for comparison. lookup reports whether
// the name is cached, and caches it.
type evictor interface{ lookup(name uint64) bool }

// trace yields n names to look up.
type trace func(n int, yield func(name uint64))

// zipfWithNoise looks up a million names by Zipf's law (s = 1.01). A share of the
// lookups is for random subdomains, each looked up once.
func zipfWithNoise(share float64) trace {
	return func(n int, yield func(uint64)) {
		rnd := rand.New(rand.NewPCG(1, 2))
		zipf := rand.NewZipf(rnd, 1.01, 1, 1e6)
		once := uint64(1) << 40
		for range n {
			if rnd.Float64() < share {
				once++
				yield(once)
			} else {
				yield(zipf.Uint64())
			}
		}
	}
}

// ndots5 simulates the pods of a node with the search list and ndots:5 of
// Kubernetes. 60 pods in 20 namespaces look up cluster names and external names,
// both by Zipf's law. They query A and AAAA through the search list until a name
// exists. One lookup in ten is for a new external name. Every 20,000 lookups a pod
// of any namespace replaces another one.
func ndots5(n int, yield func(uint64)) {
	rnd := rand.New(rand.NewPCG(3, 4))
	inside, outside := rand.NewZipf(rnd, 1.1, 1, 3000), rand.NewZipf(rnd, 1.05, 1, 300_000)
	var pods [60]uint64
	for i := range pods {
		pods[i] = rnd.Uint64N(20)
	}
	fresh := uint64(1) << 30
	for queries, lookup := 0, 0; queries < n; lookup++ {
		if lookup%20_000 == 0 {
			pods[rnd.IntN(len(pods))] = rnd.Uint64N(20)
		}
		ns := pods[rnd.IntN(len(pods))]
		var names []uint64 // one per suffix, in search order
		suffix := func(name, i uint64) uint64 { return name<<8 | i<<1 }
		switch kind := rnd.Float64(); {
		case kind < 0.5: // service.namespace: it exists with the second suffix
			s := inside.Uint64()
			names = append(names, suffix(s, 1+ns), suffix(s, 64))
		case kind < 0.9:
			s := outside.Uint64() + 1<<20
			names = append(names, suffix(s, 1+ns), suffix(s, 64), suffix(s, 65), suffix(s, 66), suffix(s, 0))
		default:
			fresh++
			names = append(names, suffix(fresh, 1+ns), suffix(fresh, 64), suffix(fresh, 65), suffix(fresh, 66), suffix(fresh, 0))
		}
		for _, name := range names {
			yield(name)
			yield(name | 1) // AAAA
			queries += 2
		}
	}
}

func hitRatio(e evictor, t trace, n int) float64 {
	hits, counted, queries := 0, 0, 0
	t(n, func(name uint64) {
		hit := e.lookup(name)
		queries++
		if queries > n/4 { // the caches are full by then
			counted++
			if hit {
				hits++
			}
		}
	})
	return float64(hits) / float64(counted)
}

var full = flag.Bool("full", false, "compare all eviction policies, also in large caches")

// TestHitRatios compares eviction policies. s3fifo is the policy of shard on plain
// names; Cache is the production code. The first quarter of each trace fills the
// caches and does not count.
func TestHitRatios(t *testing.T) {
	queries, sizes := 150_000, []int{1000, 10_000}
	if *full {
		queries, sizes = 2_000_000, []int{1000, 10_000, 100_000}
	}
	loads := []struct {
		name string
		t    trace
	}{{"zipf", zipfWithNoise(0)}, {"zipf, 30% single lookups", zipfWithNoise(0.3)}, {"ndots:5", ndots5}}
	type policy struct {
		name string
		make func(size int) evictor
	}
	policies := []policy{
		{"LRU", newPlainLRU}, {"2Q", newTwoQueues}, {"TinyLFU", newTinyLFU}, {"SIEVE", newSieve},
		{"S3-FIFO", newS3FIFO}, {"Cache", newCapped}, {"Cache in bytes", newBudgeted},
	}
	if !*full { // no check uses the others, only the log shows them
		policies = slices.DeleteFunc(policies, func(p policy) bool {
			return p.name == "2Q" || p.name == "TinyLFU" || p.name == "SIEVE"
		})
	}
	for _, l := range loads {
		for _, size := range sizes {
			line, ratio := "", make(map[string]float64)
			for _, p := range policies {
				ratio[p.name] = hitRatio(p.make(size), l.t, queries)
				line += fmt.Sprintf("  %s %.4f", p.name, ratio[p.name])
			}
			t.Logf("%-15s %6d entries:%s", l.name, size, line)
			for _, ours := range []string{"Cache", "Cache in bytes"} {
				if ratio[ours] < ratio["LRU"]*1.02 || ratio[ours] < ratio["S3-FIFO"]*0.98 {
					t.Errorf("%s, %d entries: %s hits %.4f of the time, LRU %.4f, S3-FIFO %.4f", l.name, size, ours, ratio[ours], ratio["LRU"], ratio["S3-FIFO"])
				}
			}
		}
	}
}

// inCache is a Cache with entries of equal size, limited by a cap or its budget.
type inCache struct {
	c     *Cache
	limit int
}

func newCapped(size int) evictor {
	return inCache{New(Options{Bytes: 64 << 20, Shards: 1}).Cache("", Policy{}), size}
}

func newBudgeted(size int) evictor {
	slots := minSlots
	for slots*4 < size*5 {
		slots *= 2
	}
	bytes := int64(size*2*blockBytes + slots*slotBytes)
	return inCache{New(Options{Bytes: bytes, Shards: 1}).Cache("", Policy{}), math.MaxInt}
}

func (p inCache) lookup(name uint64) bool {
	var buf [32]byte
	key := binary.BigEndian.AppendUint64(append(buf[:0], 8), name)
	key = append(key, 0, 0, 1, 0, 1, 0)
	hash, set := p.c.locate(key)
	if id := set.find(Success, hash, key); id != 0 {
		set.shard.slab.slot(id).count()
		return true
	}
	msg := append(make([]byte, headerLen, 2*headerLen+len(key)), key[:len(key)-1]...)
	set.add(hash, &Entry{buf: msg, msgLen: uint16(len(msg)), ttl: 30}, 0, p.limit, inherited{})
	return false
}

type plainLRU struct {
	c *simplelru.LRU[uint64, struct{}]
}

func newPlainLRU(size int) evictor {
	c, _ := simplelru.NewLRU[uint64, struct{}](size, nil)
	return plainLRU{c}
}

func (p plainLRU) lookup(name uint64) bool {
	_, ok := p.c.Get(name)
	if !ok {
		p.c.Add(name, struct{}{})
	}
	return ok
}

type twoQueues struct {
	c *lru.TwoQueueCache[uint64, struct{}]
}

func newTwoQueues(size int) evictor {
	c, _ := lru.New2Q[uint64, struct{}](size)
	return twoQueues{c}
}

func (p twoQueues) lookup(name uint64) bool {
	_, ok := p.c.Get(name)
	if !ok {
		p.c.Add(name, struct{}{})
	}
	return ok
}

// tinyLFU is an LRU that admits a name only if it had more lookups than the name to
// evict, by a sketch of counts that are halved periodically.
type tinyLFU struct {
	c      *simplelru.LRU[uint64, struct{}]
	size   int
	counts [4][]byte
	adds   int
}

func newTinyLFU(size int) evictor {
	c, _ := simplelru.NewLRU[uint64, struct{}](size, nil)
	p := &tinyLFU{c: c, size: size}
	for i := range p.counts {
		p.counts[i] = make([]byte, 1<<int(math.Ceil(math.Log2(float64(size*8)))))
	}
	return p
}

func (p *tinyLFU) cell(i int, name uint64) *byte {
	h := (name + uint64(i+1)) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return &p.counts[i][h>>32&uint64(len(p.counts[i])-1)]
}

func (p *tinyLFU) count(name uint64) byte {
	n := byte(255)
	for i := range p.counts {
		n = min(n, *p.cell(i, name))
	}
	return n
}

func (p *tinyLFU) lookup(name uint64) bool {
	n := p.count(name)
	for i := range p.counts {
		if c := p.cell(i, name); *c == n && n < 15 {
			*c++
		}
	}
	if p.adds++; p.adds == 10*p.size {
		p.adds = 0
		for i := range p.counts {
			for j := range p.counts[i] {
				p.counts[i][j] /= 2
			}
		}
	}
	if _, ok := p.c.Get(name); ok {
		return true
	}
	if p.c.Len() < p.size {
		p.c.Add(name, struct{}{})
	} else if old, _, _ := p.c.GetOldest(); p.count(name) > p.count(old) {
		p.c.Add(name, struct{}{})
	}
	return false
}

// sieve has a queue and a hand that moves from its old to its new end and evicts
// the first name without a lookup since the hand passed it.
type sieve struct {
	size int
	at   map[uint64]int
	ring []sieveSlot // oldest first; evicted ones stay until compaction
	hand int
}

type sieveSlot struct {
	name          uint64
	visited, gone bool
}

func newSieve(size int) evictor { return &sieve{size: size, at: make(map[uint64]int)} }

func (p *sieve) lookup(name uint64) bool {
	if i, ok := p.at[name]; ok {
		p.ring[i].visited = true
		return true
	}
	if len(p.at) == p.size {
		p.evict()
	}
	p.at[name] = len(p.ring)
	p.ring = append(p.ring, sieveSlot{name: name})
	return false
}

func (p *sieve) evict() {
	for ; ; p.hand++ {
		if p.hand == len(p.ring) {
			p.compact()
		}
		s := &p.ring[p.hand]
		if s.gone {
			continue
		}
		if !s.visited {
			s.gone = true
			delete(p.at, s.name)
			return
		}
		s.visited = false
	}
}

func (p *sieve) compact() {
	p.ring = slices.DeleteFunc(p.ring, func(s sieveSlot) bool { return s.gone })
	for i, s := range p.ring {
		p.at[s.name] = i
	}
	p.hand = 0
}

// s3fifo has the queues of bin, and an LRU of ghosts.
type s3fifo struct {
	size  int
	freq  map[uint64]byte
	queue [2][]uint64 // small, main
	ghost *simplelru.LRU[uint64, struct{}]
}

func newS3FIFO(size int) evictor {
	g, _ := simplelru.NewLRU[uint64, struct{}](size, nil)
	return &s3fifo{size: size, freq: make(map[uint64]byte), ghost: g}
}

func (p *s3fifo) lookup(name uint64) bool {
	if f, ok := p.freq[name]; ok {
		p.freq[name] = min(f+1, 3)
		return true
	}
	for len(p.freq) >= p.size {
		p.evict()
	}
	to := 0
	if p.ghost.Remove(name) {
		to = 1
	}
	p.freq[name] = 0
	p.queue[to] = append(p.queue[to], name)
	return false
}

func (p *s3fifo) evict() {
	from := 1
	if len(p.queue[0]) > p.size/10 || len(p.queue[1]) == 0 {
		from = 0
	}
	name := p.queue[from][0]
	p.queue[from] = p.queue[from][1:]
	f := p.freq[name]
	switch {
	case from == 0 && f > 0:
		p.freq[name] = 0
		p.queue[1] = append(p.queue[1], name)
	case from == 1 && f > 0:
		p.freq[name]--
		p.queue[1] = append(p.queue[1], name)
	default:
		delete(p.freq, name)
		if from == 0 {
			p.ghost.Add(name, struct{}{})
		}
	}
}
