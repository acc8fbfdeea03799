package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/netsetup"
)

// Teardown removes from the host what daemons have set up.
type Teardown struct {
	// Wait is how long to wait until no process listens on the local addresses; 0:
	// do not wait. Nothing is removed if one still does.
	Wait time.Duration
	// Force detaches redirection although a daemon runs, and nothing else.
	Force bool
}

// Run removes what a daemon with options o has set up, and names it. removed is empty
// if only redirection was detached. Run fails if a daemon runs, except with Force.
func (t Teardown) Run(ctx context.Context, o *Options) (removed string, err error) {
	if err := t.awaitStop(ctx, o); err != nil {
		return "", err
	}
	if pid := runningPID(); pid != "" && t.Force {
		return "", bpf.Teardown(o.Redirect.PinDir)
	} else if pid != "" {
		return "", fmt.Errorf("teardown: nodens runs (%s): it would repair its addresses and rules at once, and pods would lose redirection until it restarts; stop it first, or detach redirection alone with -force", pid)
	}
	all := []string{"redirection (" + o.Redirect.PinDir + ")", "addresses", "rules"}
	if o.CacheSnapshot != "" {
		all = append(all, o.CacheSnapshot)
	}
	return strings.Join(all, ", "), errors.Join(bpf.Teardown(o.Redirect.PinDir), netsetup.Teardown(ctx, o.HostConfig()), removeSnapshot(o.CacheSnapshot))
}

// runningPID names the daemon in this network, or is empty.
func runningPID() string {
	running, found, err := doctor.FindDaemon("/proc")
	switch {
	case errors.Is(err, doctor.ErrSeveralDaemons):
		return "several processes"
	case found:
		return fmt.Sprintf("pid %d", running.PID)
	}
	return ""
}

// awaitStop waits until no process listens on the local addresses, or owns what
// teardown would remove. A nodens that
// runs would set up again what teardown removes, and pods would lose their server.
func (t Teardown) awaitStop(ctx context.Context, o *Options) error {
	if t.Wait == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.Wait)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		reason, err := inUse(ctx, o)
		if err != nil || reason == "" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nothing was removed: %s after %v; uninstall nodens first", reason, t.Wait)
		case <-tick.C:
		}
	}
}

// inUse returns the reason why nodens counts as running, or "".
func inUse(ctx context.Context, o *Options) (reason string, err error) {
	holders, err := listeners(o)
	if err != nil {
		return "", err
	}
	if len(holders) > 0 {
		return fmt.Sprintf("a process listens on %v", holders[0].Local), nil
	}
	used, err := bpf.InUse(o.Redirect.PinDir)
	if err != nil {
		return "", err
	}
	if used {
		return "a process uses " + o.Redirect.PinDir, nil
	}
	used, err = netsetup.InUse(ctx, o.HostConfig())
	if used {
		reason = "a nodens with another -localip runs"
	}
	return reason, err
}

// listeners returns the sockets on the DNS port of the local addresses.
func listeners(o *Options) ([]netsetup.PortOwner, error) {
	if len(o.LocalIPs) == 0 {
		return nil, nil
	}
	all, err := netsetup.PortOwners("/proc", o.DNSPort, o.LocalIPs...)
	return slices.DeleteFunc(all, func(p netsetup.PortOwner) bool {
		return !slices.ContainsFunc(o.LocalIPs, func(a netip.Addr) bool { return a == p.Local.Addr() })
	}), err
}
