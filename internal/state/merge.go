package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Merge returns the state of several daemons as one: sums of their counters and lists.
// Quantiles cannot be summed: Merge takes those of the worst daemon. The states are not
// changed. There must be at least one.
func Merge(all []*State) *State {
	m := &State{Ready: true, Rcodes: make(map[string]uint64), Top: make(map[string]TopLists)}
	for _, s := range all {
		if m.Started.IsZero() || s.Started.Before(m.Started) {
			m.Started = s.Started
		}
		if s.Time.After(m.Time) {
			m.Time = s.Time
		}
		m.Ready = m.Ready && s.Ready
		m.Requests, m.Hits, m.Misses, m.Failures = m.Requests+s.Requests, m.Hits+s.Hits, m.Misses+s.Misses, m.Failures+s.Failures
		for rcode, n := range s.Rcodes {
			m.Rcodes[rcode] += n
		}
		m.Cache.Bytes, m.Cache.Budget = m.Cache.Bytes+s.Cache.Bytes, m.Cache.Budget+s.Cache.Budget
		f := &m.Fastpath
		f.Answers, f.Leases, f.Entries = f.Answers+s.Fastpath.Answers, f.Leases+s.Fastpath.Leases, f.Entries+s.Fastpath.Entries
		for _, p := range s.Problems {
			m.Problems = append(m.Problems, s.Node+": "+p)
		}
	}
	if m.Node = "1 node"; len(all) > 1 {
		m.Node = fmt.Sprintf("%d nodes", len(all))
	}
	m.Version = distinct(all, func(s *State) string { return s.Version })
	m.Redirection.Mode = distinct(all, func(s *State) string { return s.Redirection.Mode })
	m.Redirection.State = distinct(all, func(s *State) string { return s.Redirection.State })
	m.Fastpath.Mode = distinct(all, func(s *State) string { return s.Fastpath.Mode })
	m.Fastpath.State = distinct(all, func(s *State) string { return s.Fastpath.State })
	m.Zones, m.Upstreams = mergeZones(all), mergeUpstreams(all)
	for _, window := range Windows() {
		m.Top[window] = mergeTop(all, window)
	}
	return m
}

// distinct joins the distinct values of all daemons.
func distinct(all []*State, of func(*State) string) string {
	values := make(map[string]bool)
	for _, s := range all {
		values[of(s)] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(values)), ", ")
}

func mergeZones(all []*State) []Zone {
	sums := make(map[string]Zone)
	for _, s := range all {
		for _, z := range s.Zones {
			sum := sums[z.Name]
			sum.Name = z.Name
			sum.Requests, sum.Hits, sum.Misses, sum.Failures = sum.Requests+z.Requests, sum.Hits+z.Hits, sum.Misses+z.Misses, sum.Failures+z.Failures
			sum.CacheEntries, sum.CacheBytes = sum.CacheEntries+z.CacheEntries, sum.CacheBytes+z.CacheBytes
			sum.HitLatency, sum.MissLatency = sum.HitLatency.worse(z.HitLatency), sum.MissLatency.worse(z.MissLatency)
			sums[z.Name] = sum
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Zone) int { return cmp.Compare(a.Name, b.Name) })
}

func mergeUpstreams(all []*State) []Upstream {
	type key struct{ zone, address, protocol string }
	sums := make(map[key]Upstream)
	for _, s := range all {
		for _, u := range s.Upstreams {
			k := key{u.Zone, u.Address, u.Protocol}
			sum, ok := sums[k]
			if !ok {
				sum = Upstream{Zone: u.Zone, Address: u.Address, Protocol: u.Protocol, Healthy: true}
			}
			sum.Healthy = sum.Healthy && u.Healthy
			sum.Queries, sum.Failures = sum.Queries+u.Queries, sum.Failures+u.Failures
			sum.Latency = sum.Latency.worse(u.Latency)
			sums[k] = sum
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b Upstream) int {
		return cmp.Or(cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
}

func (l Latency) worse(o Latency) Latency {
	return Latency{Count: l.Count + o.Count, P50: max(l.P50, o.P50), P90: max(l.P90, o.P90), P99: max(l.P99, o.P99)}
}

func mergeTop(all []*State, window string) (m TopLists) {
	for _, s := range all {
		t := s.Top[window]
		m.Covers = max(m.Covers, t.Covers)
		m.Queries += t.Queries
	}
	list := func(of func(TopLists) []Entry, by func(Entry) float64) []Entry {
		lists := make([][]Entry, len(all))
		for i, s := range all {
			lists[i] = of(s.Top[window])
		}
		return mergeEntries(lists, by)
	}
	count := func(e Entry) float64 { return float64(e.Count) }
	m.Names = list(func(t TopLists) []Entry { return t.Names }, count)
	m.Clients = list(func(t TopLists) []Entry { return t.Clients }, count)
	m.NXDomain = list(func(t TopLists) []Entry { return t.NXDomain }, count)
	m.Slow = list(func(t TopLists) []Entry { return t.Slow }, func(e Entry) float64 { return e.Seconds })
	return m
}

// mergeEntries sums the entries of all lists. The result is as long as the longest
// list. A key that a list leaves out may have a count there, of at most that of the list's
// last entry. mergeEntries adds it to the error of the key.
func mergeEntries(lists [][]Entry, by func(Entry) float64) []Entry {
	type key struct{ key, zone string }
	sums := make(map[key]Entry)
	longest, leftOut := 0, uint64(0)
	smallest := func(list []Entry) uint64 {
		n := list[0].Count
		for _, e := range list {
			n = min(n, e.Count)
		}
		return n
	}
	for _, list := range lists {
		if len(list) == 0 {
			continue
		}
		longest = max(longest, len(list))
		least := smallest(list)
		leftOut += least
		for _, e := range list {
			k := key{e.Key, e.Zone}
			sum := sums[k]
			sum.Key, sum.Zone, sum.Label = e.Key, e.Zone, cmp.Or(sum.Label, e.Label)
			sum.Count, sum.Seconds = sum.Count+e.Count, sum.Seconds+e.Seconds
			// The list has this key: leftOut does not apply.
			sum.Error += e.Error - least
			sums[k] = sum
		}
	}
	merged := slices.SortedFunc(maps.Values(sums), func(a, b Entry) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Zone, b.Zone))
	})
	merged = merged[:min(longest, len(merged))]
	for i := range merged {
		merged[i].Error += leftOut
	}
	return merged
}
