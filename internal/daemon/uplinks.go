package daemon

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/netsetup"
)

// followUplinks keeps the gate of the targets shut for what comes from outside,
// as interfaces come and go, until ctx is done.
func (r *redirector) followUplinks(ctx context.Context, known []netsetup.Uplink, named []string) {
	const again = 10 * time.Second // where the kernel does not tell
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		err := netsetup.FollowLinks(ctx.Done(), func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		if err != nil {
			r.log.Warn("interfaces are looked at every so often only", "interval", again, "error", err)
		}
	})
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
		known = r.shutGate(known, named)
	}
}

// shutGate tells when the uplinks are others than those known, nil at first, and which named
// ones are missing. If all are, a name may be wrong, and the gate is shut for what
// leads to other hosts.
func (r *redirector) shutGate(known []netsetup.Uplink, named []string) []netsetup.Uplink {
	uplinks, err := netsetup.Uplinks(named)
	if err == nil && len(uplinks) == 0 && len(named) > 0 {
		uplinks, err = netsetup.Uplinks(nil)
	}
	if err != nil {
		r.log.Error("uplinks of the node are not known; the target answers as before", "error", err)
		return known
	}
	var indexes []int
	var names []string
	for _, u := range uplinks {
		indexes, names = append(indexes, u.Index), append(names, u.Name)
	}
	r.gate.Close(indexes)
	if known != nil && slices.Equal(uplinks, known) {
		return known
	}
	missing := slices.DeleteFunc(slices.Clone(named), func(n string) bool { return slices.Contains(names, n) })
	if len(missing) > 0 {
		r.log.Warn("uplinks that are named do not exist", "interfaces", missing)
	}
	r.log.Info("the target answers nobody who comes in by these interfaces", "interfaces", names)
	return append([]netsetup.Uplink{}, uplinks...) // not nil
}
