// Package querystats keeps statistics of queries in a fixed amount of memory: the most
// frequent names and clients, the names that do not exist and the names with the longest
// waits, by zone, of the last minute, 5 minutes and hour; and the latencies of the last
// minute.
//
// Replies from the cache are sampled: about sampleRate a second are counted, each with
// the number of replies that it represents as its weight. Below 1.5 times that rate,
// every reply is counted. Above it, a minute has at least 450,000 samples. So the standard
// deviation of a name with a share p of the queries is at most sqrt((1-p)/p/450,000) of its
// count: 1.5% for p = 1%.
package querystats

import (
	"hash/maphash"
	"math/bits"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// sampleRate is the number of samples a second when replies are sampled. A sample costs
// about 0.3 µs (BenchmarkAdd), so samples use at most 0.5% of a CPU. What they add to a hit:
// go run ./test/bench -only statistics.
const sampleRate = 10_000

// Stats are the statistics of one process. Its methods are safe for concurrent use. Its
// memory is the struct and the names of maxZones zones.
type Stats struct {
	seed   maphash.Seed
	stride atomic.Uint32 // one of this number of replies is sampled

	mu    sync.Mutex // guards the fields below; held for at most a microsecond per sample
	total uint64     // weight since the last adjustment of stride
	since time.Time  // when stride was adjusted
	live  *interval
	spare *interval // empty, or used by Rotate
	times latencies

	both  [2]interval // live and spare
	past  history
	zones zoneNames
}

// interval counts the replies since the last rotation.
type interval struct {
	start   time.Time
	queries [maxZones]uint64 // by zone
	names   [128]set
	clients [64]set
	denied  [32]set
	slow    [32]set // weights are microseconds
}

// Sample is one reply.
type Sample struct {
	Name     []byte // of the question, in wire format; Add does not keep it
	Client   netip.Addr
	Zone     Zone
	Weight   uint32 // the number of replies that it represents
	NXDomain bool   // the reply denies the name
	Waited   bool   // the reply is not from the cache
}

// New returns empty statistics that begin now.
func New(now time.Time) *Stats {
	s := &Stats{seed: maphash.MakeSeed(), since: now}
	s.live, s.spare = &s.both[0], &s.both[1]
	s.live.start, s.times.since = now, now
	s.stride.Store(1)
	return s
}

// Sampler chooses which replies of one goroutine are counted. The zero value chooses the
// next one.
type Sampler struct {
	skip   uint32 // replies to skip
	random uint64
}

// Next reports whether to count the next reply, and its weight. The gaps are random,
// because queries come in patterns.
func (p *Sampler) Next(s *Stats) (weight uint32, ok bool) {
	if p.skip > 0 {
		p.skip--
		return 0, false
	}
	weight = s.stride.Load()
	p.random = p.random*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
	p.skip = uint32((p.random >> 32) * uint64(2*weight-1) >> 32)  // weight-1 on average
	return weight, true
}

// Add counts replies that were made now. Each of them took the time took.
func (s *Stats) Add(samples []Sample, took time.Duration, now time.Time) {
	took = max(took, 1<<firstOctave)
	octave := bits.Len64(uint64(took)) - 1
	bucket := min((octave-firstOctave)*8+int(took>>(octave-3))&7, buckets-1)

	s.mu.Lock()
	for i := range samples {
		r := &samples[i]
		s.total += uint64(r.Weight)
		if r.Waited {
			s.times.slots[s.times.now].misses[r.Zone][bucket] += r.Weight
		} else {
			s.times.slots[s.times.now].hits[r.Zone][bucket] += r.Weight
		}
		s.count(r, took)
	}
	if elapsed := now.Sub(s.since); elapsed >= time.Second || s.total >= 2*sampleRate {
		rate := float64(s.total) / max(elapsed.Seconds(), 1e-3)
		s.stride.Store(uint32(min(max(rate/sampleRate+0.5, 1), 1<<12)))
		s.total, s.since = 0, now
	}
	s.mu.Unlock()
}

// AddAnswered counts n answers that the kernel gave to a question. AddClient counts their
// clients.
func (s *Stats) AddAnswered(name []byte, z Zone, denied bool, n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(&Sample{Name: name, Zone: z, Weight: n, NXDomain: denied}, 0)
}

// AddClient counts n answers that the kernel gave to a client.
func (s *Stats) AddClient(client netip.Addr, z Zone, n uint32) {
	addr := client.As16()
	key := append(addr[:], byte(z))
	hash := maphash.Bytes(s.seed, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live.clients[hash%uint64(len(s.live.clients))].add(hash, uint64(n), &Sample{Zone: z, Weight: n}, addr[:])
}

// count counts a reply in the lists. s.mu is held.
func (s *Stats) count(r *Sample, took time.Duration) {
	var key [maxName + 1]byte
	n := min(len(r.Name), maxName)
	for i, c := range r.Name[:n] { // length bytes are below 'A'
		if c-'A' < 26 {
			c += 'a' - 'A'
		}
		key[i] = c
	}
	key[n] = byte(r.Zone)
	hash := maphash.Bytes(s.seed, key[:n+1])
	s.live.queries[r.Zone] += uint64(r.Weight)
	if n == 0 {
		return // the question could not be read
	}
	s.live.names[hash%uint64(len(s.live.names))].add(hash, uint64(r.Weight), r, key[:n])
	if r.NXDomain {
		s.live.denied[hash%uint64(len(s.live.denied))].add(hash, uint64(r.Weight), r, key[:n])
	}
	if r.Waited {
		s.live.slow[hash%uint64(len(s.live.slow))].add(hash, uint64(took.Microseconds())*uint64(r.Weight), r, key[:n])
	}
	if r.Client.IsValid() {
		client := r.Client.As16()
		n = copy(key[:], client[:])
		key[n] = byte(r.Zone)
		hash = maphash.Bytes(s.seed, key[:n+1])
		s.live.clients[hash%uint64(len(s.live.clients))].add(hash, uint64(r.Weight), r, key[:n])
	}
}

const (
	maxName  = 255 // bytes of a name in wire format (RFC 1035 §2.3.4)
	keyBytes = 82  // of a key that are kept; a longer name loses its end
	ways     = 8   // values of a set
)

// set counts the most frequent values of one hash bucket by the space-saving algorithm
// (Metwally, Agrawal, El Abbadi 2005): a new value replaces the one with the least
// weight, and inherits that weight as its error.
type set struct {
	hash, weight [ways]uint64 // weight 0: free
	items        [ways]item
}

// item is the rest of a value.
type item struct {
	err   uint64 // upper bound of the excess of the weight
	count uint32 // queries since the value entered the set
	zone  Zone
	size  uint8 // of the whole key
	key   [keyBytes]byte
}

// add adds weight to the value with the hash and the key. r is its sample.
func (t *set) add(hash, weight uint64, r *Sample, key []byte) {
	least := 0
	for i := range t.hash {
		if t.hash[i] == hash {
			t.weight[i] += weight
			t.items[i].count += r.Weight
			return
		}
		if t.weight[i] < t.weight[least] {
			least = i
		}
	}
	e := &t.items[least]
	e.err, e.count, e.zone, e.size = t.weight[least], r.Weight, r.Zone, uint8(len(key))
	copy(e.key[:], key)
	t.hash[least] = hash
	t.weight[least] += weight
}
