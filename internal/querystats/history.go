package querystats

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Interval is the time between two calls of Rotate.
const Interval = 15 * time.Second

// history has the lists of past intervals: of the last four intervals, of the last five
// minutes, and of parts of ten minutes.
type history struct {
	mu       sync.Mutex
	quarters ring[[4]slot]
	minutes  ring[[5]slot]
	tens     ring[[7]slot]
}

// ring has slots in the order of time, and overwrites the oldest.
type ring[T any] struct {
	slots T
	next  int // number of slots that were filled
}

// The kinds of lists.
const (
	ofNames = iota
	ofClients
	ofDenied
	ofSlow
	kinds
)

// slot has the lists of a past period.
type slot struct {
	start, end time.Time
	queries    [maxZones]uint64
	names      [384]entry
	clients    [128]entry
	denied     [96]entry
	slow       [96]entry
	lists      [kinds]struct {
		n   int    // entries in use
		cut uint64 // upper bound of the weight of a value that is not in the list
	}
}

// entry is a value of a slot. Its weight differs from the exact one by at most err.
type entry struct {
	hash, weight uint64
	item
}

// room returns the memory of a list.
func (s *slot) room(kind int) []entry {
	return [kinds][]entry{s.names[:], s.clients[:], s.denied[:], s.slow[:]}[kind]
}

func (s *slot) list(kind int) []entry { return s.room(kind)[:s.lists[kind].n] }

// sets returns the memory of a list.
func (v *interval) sets(kind int) []set {
	return [kinds][]set{v.names[:], v.clients[:], v.denied[:], v.slow[:]}[kind]
}

// list returns the values of a list, and an upper bound of the weight of a value that is
// not in it.
func (v *interval) list(kind int) (all []entry, cut uint64) {
	sets := v.sets(kind)
	for i := range sets {
		least := ^uint64(0)
		for w, weight := range sets[i].weight {
			if least = min(least, weight); weight == 0 {
				continue
			}
			e := entry{sets[i].hash[w], weight, sets[i].items[w]}
			if kind == ofSlow { // a lower bound
				e.weight, e.err = e.weight-e.err, 0
			} else { // the middle
				e.err = (e.err + 1) / 2
				e.weight -= e.err
			}
			all = append(all, e)
		}
		cut = max(cut, least)
	}
	return all, cut
}

// Rotate ends an interval. The caller calls it once per Interval.
func (s *Stats) Rotate(now time.Time) {
	h := &s.past
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	ended := s.live
	s.live, s.spare = s.spare, ended
	s.live.start = now
	if now.Sub(s.times.since) >= 2*Interval-Interval/2 {
		s.times.now, s.times.since = (s.times.now+1)%len(s.times.slots), now
		clear(s.times.slots[s.times.now].hits[:])
		clear(s.times.slots[s.times.now].misses[:])
	}
	s.mu.Unlock()

	h.quarters.slots[h.quarters.next%4].fill(ended, now, nil)
	*ended = interval{}
	if h.quarters.next++; h.quarters.next%4 != 0 {
		return
	}
	h.minutes.slots[h.minutes.next%5].fill(nil, now, last(h.quarters.slots[:], 4, 4))
	if h.minutes.next++; h.minutes.next%5 != 0 {
		return
	}
	ten := &h.tens.slots[h.tens.next/2%7] // each is filled twice
	parts := last(h.minutes.slots[:], 5, 5)
	if h.tens.next%2 == 1 {
		before := *ten
		parts = append(parts, &before)
	}
	ten.fill(nil, now, parts)
	h.tens.next++
}

// last returns the slots that were filled last, at most n. next is the number of slots
// that were filled since the start.
func last(slots []slot, next, n int) (all []*slot) {
	for i := max(next-n, 0); i < next; i++ {
		all = append(all, &slots[i%len(slots)])
	}
	return all
}

// fill makes s the sum of an interval, which may be nil, and of other slots.
func (s *slot) fill(v *interval, now time.Time, parts []*slot) {
	sum := add(v, parts)
	s.start, s.end, s.queries = now, now, sum.queries
	s.start = now.Add(-sum.covers)
	if v != nil {
		s.start = v.start
	}
	for kind := range kinds {
		room := s.room(kind)
		all := keep(sum.lists[kind], len(room))
		s.lists[kind].n, s.lists[kind].cut = len(all), sum.cuts[kind]
		for i, e := range all {
			room[i] = *e
		}
		for _, e := range sum.lists[kind][len(all):] {
			s.lists[kind].cut = max(s.lists[kind].cut, e.weight+e.err)
		}
	}
}

// sum is the sum of several periods.
type sum struct {
	covers  time.Duration // without that of the interval
	queries [maxZones]uint64
	lists   [kinds][]*entry // the largest weight first
	cuts    [kinds]uint64
}

// add adds an interval, which may be nil, and slots.
func add(v *interval, parts []*slot) *sum {
	t := new(sum)
	if v != nil {
		t.queries = v.queries
	}
	for _, p := range parts {
		t.covers += p.end.Sub(p.start)
		for z, n := range p.queries {
			t.queries[z] += n
		}
	}
	for kind := range kinds {
		t.lists[kind], t.cuts[kind] = addLists(v, parts, kind)
	}
	return t
}

// addLists adds lists of a kind. If a part does not list a value, the value may have up
// to the part's cut there. addLists adds the cut to the value's error.
func addLists(v *interval, parts []*slot, kind int) ([]*entry, uint64) {
	type value struct {
		entry
		cuts uint64 // of the parts that list it
	}
	values := make(map[uint64]*value)
	var cuts uint64
	one := func(list []entry, cut uint64) {
		cuts += cut
		for i := range list {
			e, known := values[list[i].hash], false
			if known = e != nil; !known {
				e = &value{entry: list[i]}
				values[e.hash] = e
			}
			e.cuts += cut
			if known {
				e.weight, e.err, e.count = e.weight+list[i].weight, e.err+list[i].err, e.count+list[i].count
			}
		}
	}
	if v != nil {
		one(v.list(kind))
	}
	for _, p := range parts {
		one(p.list(kind), p.lists[kind].cut)
	}
	all := make([]*entry, 0, len(values))
	for _, e := range values {
		if kind != ofSlow {
			e.err += cuts - e.cuts
		}
		all = append(all, &e.entry)
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.hash, b.hash)) })
	return all, cuts
}

// ofZone is the number of values of each zone that are kept before those of others.
const ofZone = 8

// keep orders values so that the first n are those to keep: half of them have the largest
// weights; the other half prefers the first ofZone of each zone. It returns the first n.
func keep(all []*entry, n int) []*entry {
	if len(all) <= n {
		return all
	}
	var seen [maxZones]int
	first := make([]bool, len(all))
	for i, e := range all {
		first[i] = i < n/2 || seen[e.zone] < ofZone
		seen[e.zone]++
	}
	kept, others := make([]*entry, 0, len(all)), make([]*entry, 0, len(all))
	for i, e := range all {
		if first[i] {
			kept = append(kept, e)
		} else {
			others = append(others, e)
		}
	}
	copy(all, append(kept, others...))
	return all[:n]
}
