package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/netsetup"
)

// limitFlags is what the command line says of who is answered and how much of
// the daemon one client may take.
type limitFlags struct {
	everybody           bool
	misses, perClient   int // under resolution; 0: the server's defaults
	tcp, tcpOfOneClient int // connections of one address; 0: the defaults
}

func (l *limitFlags) set(fs *flag.FlagSet) {
	fs.Func("clients", "`who` is answered on addresses that are not those of -localip: inside, which is all to whom a route other than the default one leads, or all (default inside)", func(s string) error {
		if s != "inside" && s != "all" {
			return errors.New("want inside or all")
		}
		l.everybody = s == "all"
		return nil
	})
	for _, f := range []struct {
		name, usage string
		to          *int
	}{
		{"max-misses", "resolve at most `n` queries at once; more get SERVFAIL (default 16384)", &l.misses},
		{"max-misses-per-client", "resolve at most `n` queries of one client at once; more get SERVFAIL (default an eighth of -max-misses)", &l.perClient},
		{"max-tcp-connections", "keep at most `n` TCP connections on one address; more are closed (default 1024)", &l.tcp},
		{"max-tcp-connections-per-client", "keep at most `n` TCP connections of one client there (default 512)", &l.tcpOfOneClient},
	} {
		fs.Func(f.name, f.usage, func(s string) (err error) {
			*f.to, err = parseCount(s)
			return err
		})
	}
}

// parseCount reads a limit, which is at least 1.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 20)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("want a number from 1 to %d", 1<<20-1)
	}
	return int(n), nil
}

// newServer makes a server that keeps to the limits. now reads a monotonic
// clock.
func (l *limitFlags) newServer(c server.Config, now func() time.Time) (*server.Server, error) {
	c.MaxMisses, c.MaxMissesPerClient = l.misses, l.perClient
	c.TCP.Connections, c.TCP.PerClient = l.tcp, l.tcpOfOneClient
	if !l.everybody {
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
	return !d.flags.limits.everybody && !addr.Addr().IsLoopback() && !slices.Contains(d.flags.localIPs, addr.Addr())
}
