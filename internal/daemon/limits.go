package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/netsetup"
)

// newServer makes a server that keeps to the limits. now reads a monotonic
// clock.
func (l *LimitOptions) newServer(c server.Config, now func() time.Time) (*server.Server, error) {
	c.MaxMisses, c.MaxMissesPerClient = l.Misses, l.MissesPerClient
	c.TCP.Connections, c.TCP.PerClient = l.TCP, l.TCPPerClient
	if !l.Everybody {
		o, err := netsetup.NewOutside(now)
		if err != nil {
			return nil, fmt.Errorf("-clients inside: %w", err)
		}
		c.Outside = o.Has
	}
	return server.New(c), nil
}

// guarded reports whether clients from outside are kept out of addr. They do
// not come to the addresses of -localip, which nobody routes to us, nor to
// loopback.
func (d *daemon) guarded(addr netip.AddrPort) bool {
	return !d.opts.Limits.Everybody && !addr.Addr().IsLoopback() && !slices.Contains(d.opts.LocalIPs, addr.Addr())
}
