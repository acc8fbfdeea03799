package querystats

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// listed bounds the values of a list of Top.
const listed = 50

// Lists are the most frequent values of one window. The largest come first.
type Lists struct {
	Covers                       time.Duration // the period of the lists
	Queries                      uint64
	Names, Clients, Denied, Slow []Value
}

// Value is one value of a list.
type Value struct {
	Name    string     // in presentation form; empty for a client
	Client  netip.Addr // invalid for a name
	Zone    string     // of a name
	Queries uint64
	Error   uint64        // upper bound of the error of Queries, without the sampling error
	Waited  time.Duration // of Slow: lower bound of the sum of all waits; Queries is then a lower bound, too
}

// Window is a period that ends now.
type Window int

// The windows of Top.
const (
	Minute Window = iota
	FiveMinutes
	Hour
)

// Top returns the lists of a window for the zones with this name, or for all zones if
// name is empty.
func (s *Stats) Top(name string, w Window, now time.Time) Lists {
	h := &s.past
	h.mu.Lock()
	defer h.mu.Unlock()
	s.mu.Lock()
	live := *s.live // 240 KiB
	s.mu.Unlock()
	sum := add(&live, h.window(w))
	sum.covers += now.Sub(live.start)
	return sum.show(s.zoneNames(), name)
}

// window returns the slots of a window, without the current interval.
func (h *history) window(w Window) []*slot {
	quarters := last(h.quarters.slots[:], h.quarters.next, 4)
	if w == Minute {
		return quarters
	}
	recent := quarters[len(quarters)-min(h.quarters.next%4, len(quarters)):] // not yet in a minute
	minutes := last(h.minutes.slots[:], h.minutes.next, 5)
	if w == FiveMinutes {
		return slices.Concat(recent, minutes)
	}
	since := minutes[len(minutes)-min(h.minutes.next%5, len(minutes)):] // not yet in tens
	return slices.Concat(recent, since, last(h.tens.slots[:], (h.tens.next+1)/2, 7))
}

// show returns the lists of the zones with this name, or of all zones.
func (t *sum) show(zones []string, name string) Lists {
	l := Lists{Covers: t.covers}
	wanted := func(z Zone) bool { return name == "" || zones[z] == name }
	for z := range zones {
		if wanted(Zone(z)) {
			l.Queries += t.queries[z]
		}
	}
	for kind, to := range [kinds]*[]Value{&l.Names, &l.Clients, &l.Denied, &l.Slow} {
		list := slices.DeleteFunc(t.lists[kind], func(e *entry) bool { return !wanted(e.zone) || e.weight == 0 })
		if kind == ofClients {
			*to = clients(list, t.cuts[kind], t.busy(wanted))
			continue
		}
		for _, e := range list[:min(len(list), listed)] {
			v := Value{Name: e.name(), Zone: zones[e.zone], Queries: e.weight, Error: e.err}
			if kind == ofSlow {
				v.Queries, v.Error, v.Waited = uint64(e.count), 0, time.Duration(e.weight)*time.Microsecond
			}
			*to = append(*to, v)
		}
	}
	return l
}

// busy returns how many of the wanted zones have queries.
func (t *sum) busy(wanted func(Zone) bool) (zones uint64) {
	for z, n := range t.queries {
		if n > 0 && wanted(Zone(z)) {
			zones++
		}
	}
	return zones
}

// clients sums the entries of each client over all zones. In a zone without an entry,
// the client may have up to cut queries.
func clients(list []*entry, cut, zones uint64) []Value {
	var all []Value
	at := make(map[netip.Addr]int)
	for _, e := range list {
		addr := netip.AddrFrom16([16]byte(e.key[:16])).Unmap()
		i, ok := at[addr]
		if !ok {
			i = len(all)
			at[addr] = i
			all = append(all, Value{Client: addr, Error: zones * cut})
		}
		all[i].Queries += e.weight
		all[i].Error += e.err - cut // of this zone
	}
	slices.SortStableFunc(all, func(a, b Value) int { return int(b.Queries) - int(a.Queries) })
	return all[:min(len(all), listed)]
}

// name returns the name in presentation form. A name without its end ends with "…".
func (e *entry) name() string {
	if int(e.size) <= len(e.key) {
		return dnsname.String(e.key[:e.size])
	}
	end := 0
	for end+1+int(e.key[end]) < len(e.key) {
		end += 1 + int(e.key[end])
	}
	return dnsname.String(append(slices.Clone(e.key[:end]), 0)) + "…"
}
