package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/netsetup"
)

// newServer makes a server that answers the clients of -clients. now reads a
// monotonic clock.
func (o *Options) newServer(c server.Config, now func() time.Time) (*server.Server, error) {
	if !o.Limits.Everybody {
		o, err := netsetup.NewOutside(now)
		if err != nil {
			return nil, fmt.Errorf("-clients inside: %w", err)
		}
		c.Outside = o.Has
	}
	return server.New(c), nil
}

// guarded reports whether addr answers only clients from inside, see -clients. Clients
// from outside cannot reach loopback, nor the addresses of -localip, which no
// network routes to the node.
func (o *Options) guarded(addr netip.AddrPort) bool {
	return !o.Limits.Everybody && !addr.Addr().IsLoopback() && !slices.Contains(o.LocalIPs, addr.Addr())
}

// isLocal reports whether addr is one of -localip with our port.
func (o *Options) isLocal(addr netip.AddrPort) bool {
	return addr.Port() == o.DNSPort && slices.Contains(o.LocalIPs, addr.Addr())
}

// portOf returns the port on which a zone is served.
func (o *Options) portOf(z config.Zone) uint16 {
	if z.Port == 0 {
		return o.DNSPort
	}
	return z.Port
}
