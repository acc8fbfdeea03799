package daemon

import (
	"time"

	"github.com/nodens-dns/nodens/internal/querystats"
	"github.com/nodens-dns/nodens/internal/state"
)

// top returns the lists of a zone, or of all zones if zone is empty.
func (r *reporter) top(zone string) map[string]state.TopLists {
	all := make(map[string]state.TopLists)
	for i, window := range state.Windows() {
		l := r.queries.Top(zone, querystats.Window(i), time.Now())
		all[window] = state.TopLists{
			Covers: l.Covers.Seconds(), Queries: l.Queries,
			Names: r.entries(l.Names), Clients: r.entries(l.Clients), NXDomain: r.entries(l.Denied), Slow: r.entries(l.Slow),
		}
	}
	return all
}

func (r *reporter) entries(values []querystats.Value) []state.Entry {
	all := make([]state.Entry, len(values))
	for i, v := range values {
		all[i] = state.Entry{Key: v.Name, Zone: v.Zone, Count: v.Queries, Error: v.Error, Seconds: v.Waited.Seconds()}
		if v.Client.IsValid() {
			all[i].Key, all[i].Label = v.Client.String(), r.pods.of(v.Client)
		}
	}
	return all
}
