package netsetup

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/netsetup/firewall"
	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// Defaults of Config.
const (
	DefaultInterface    = "nodelocaldns"
	DefaultDNSPort      = 53
	DefaultSyncInterval = time.Minute
)

// dummyLink is the link type that carries the local IPs.
const dummyLink = "dummy"

// Config is the wanted state of the host.
type Config struct {
	Interface  string       // name of the link; empty: DefaultInterface
	Addrs      []netip.Addr // the local IPs, of one or both families; no zones
	DNSPort    uint16       // UDP and TCP; 0: DefaultDNSPort
	HealthPort uint16       // TCP; 0: no rules for it

	// WildcardListeners means that the daemon listens on 0.0.0.0 or [::], not on
	// the local IPs themselves. It decides which sockets count as the daemon's
	// for the rules of a service address. See Rules.SetWildcardListeners.
	WildcardListeners bool

	// Generation identifies this process among its predecessors and successors:
	// 1 to 64 letters, digits, '.', '_' or '-'. Empty: the Host only reads;
	// Ensure fails and Remove removes nothing.
	Generation string

	SyncInterval time.Duration // period of Watch's full check; 0: DefaultSyncInterval

	// NetNS is a file descriptor of the network namespace to work in; 0: the
	// process's own. The caller owns it and closes it after Host.Close.
	NetNS int

	Logger     *slog.Logger          // nil: discard
	Registerer prometheus.Registerer // nil: no metrics

	// OnError is called for every repair by Watch that failed, from two
	// goroutines. object is "addresses", "rules" or "accepts". May be nil.
	OnError func(object string, err error)

	// For tests.
	linkType              string           // in place of dummy
	noSocketExpr, noOwner bool             // features that the kernel lacks
	now                   func() time.Time // nil: time.Now
}

// withDefaults returns the checked configuration.
func (c Config) withDefaults() (Config, error) {
	if c.Generation != "" {
		if err := owner.CheckGeneration(c.Generation); err != nil {
			return c, err
		}
	}
	if c.Interface == "" {
		c.Interface = DefaultInterface
	}
	if len(c.Interface) > 15 {
		return c, fmt.Errorf("interface name %q: longer than 15 bytes", c.Interface)
	}
	if c.DNSPort == 0 {
		c.DNSPort = DefaultDNSPort
	}
	if c.SyncInterval <= 0 {
		c.SyncInterval = DefaultSyncInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.linkType == "" {
		c.linkType = dummyLink
	}
	if c.now == nil {
		c.now = time.Now
	}
	addrs, err := checkAddrs(c.Addrs)
	c.Addrs = addrs
	return c, err
}

// checkAddrs returns addrs unmapped, sorted and without duplicates.
func checkAddrs(addrs []netip.Addr) ([]netip.Addr, error) {
	out := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		a = a.Unmap()
		switch {
		case !a.IsValid():
			return nil, errors.New("local IP: not an IP address")
		case a.Zone() != "":
			return nil, fmt.Errorf("local IP %s: must not have a zone", a)
		case a.IsUnspecified(), a.IsMulticast():
			return nil, fmt.Errorf("local IP %s: not a unicast address", a)
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// localIPs are the addresses that need setup: all but loopback addresses.
func (c Config) localIPs() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.Addrs), netip.Addr.IsLoopback)
}

func (c Config) ports() nft.Ports { return nft.Ports{DNS: c.DNSPort, Health: c.HealthPort} }

func (c Config) ruleset() ruleset {
	return ruleset{
		generation: c.Generation, localIPs: c.localIPs(), ports: c.ports(),
		wildcard: c.WildcardListeners, socketExpr: !c.noSocketExpr,
	}
}

func (c Config) identity() owner.Identity {
	return owner.Identity{Generation: c.Generation, NetNS: c.NetNS, Log: c.Logger, Now: c.now}
}

func (c Config) firewall() firewall.Config {
	return firewall.Config{LocalIPs: c.localIPs(), Ports: c.ports(), Owner: c.identity(), Registerer: c.Registerer}
}
