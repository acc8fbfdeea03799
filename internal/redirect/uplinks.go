package redirect

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/tick"
	"github.com/nodens-dns/nodens/netsetup"
)

// uplinkGate keeps the gate of the targets closed for queries from outside the node.
// Only one goroutine at a time may use it.
type uplinkGate struct {
	gate  *server.Gate
	log   *slog.Logger
	named []string          // interfaces; empty: those that lead to other hosts
	known []netsetup.Uplink // of the last update; nil: none yet
}

// follow updates the gate as interfaces come and go, until ctx is done.
func (u *uplinkGate) follow(ctx context.Context) {
	const again = 10 * time.Second // without events from the kernel
	changed := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := netsetup.FollowLinks(ctx, changed); err != nil {
			u.log.Warn("cannot watch interfaces: nodens checks at intervals", "interval", again, "error", err)
		}
	})
	timer := tick.Every(again)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C:
		}
		u.update()
	}
}

// update closes the gate for the uplinks. It logs changes, and named interfaces that
// do not exist. If none of the named ones exists, it uses the default.
func (u *uplinkGate) update() {
	uplinks, err := netsetup.Uplinks(u.named)
	if err == nil && len(uplinks) == 0 && len(u.named) > 0 {
		uplinks, err = netsetup.Uplinks(nil)
	}
	if err != nil {
		u.log.Error("cannot find the node's uplinks; the target answers as before", "error", err)
		return
	}
	var indexes []int
	var names []string
	for _, l := range uplinks {
		indexes, names = append(indexes, l.Index), append(names, l.Name)
	}
	u.gate.SetBlocked(indexes)
	if u.known != nil && slices.Equal(uplinks, u.known) {
		return
	}
	u.known = append([]netsetup.Uplink{}, uplinks...) // not nil
	missing := slices.DeleteFunc(slices.Clone(u.named), func(n string) bool { return slices.Contains(names, n) })
	if len(missing) > 0 {
		u.log.Warn("uplinks in the option do not exist", "interfaces", missing)
	}
	u.log.Info("the target refuses queries that arrive on these interfaces", "interfaces", names)
}
