package netsetup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Defaults of Config.
const (
	DefaultInterface    = "nodelocaldns"
	DefaultDNSPort      = 53
	DefaultSyncInterval = time.Minute
)

// dummyLink is the link type that carries the local IPs.
const dummyLink = "dummy"

// Config says how the host shall look.
type Config struct {
	Interface  string       // name of the link; empty: DefaultInterface
	Addrs      []netip.Addr // the local IPs, of one or both families; no zones
	DNSPort    uint16       // UDP and TCP; 0: DefaultDNSPort
	HealthPort uint16       // TCP; 0: no rules for it

	// WildcardListeners says that the daemon listens on 0.0.0.0 or [::] rather
	// than on the local IPs themselves. It decides which sockets count as the
	// daemon's for the rules of a service address. See SetWildcardListeners.
	WildcardListeners bool

	// Generation tells this process from its predecessors and successors: 1 to
	// 64 letters, digits, '.', '_' or '-'. Empty: the Host is only asked for
	// Status; Ensure… fail and Remove… remove nothing.
	Generation string

	SyncInterval time.Duration // period of Watch's full check; 0: DefaultSyncInterval

	// NetNS is a file descriptor of the network namespace to work in, owned by
	// the caller and needed until Host.Close; 0: the process's own.
	NetNS int

	Logger     *slog.Logger          // nil: discard
	Registerer prometheus.Registerer // nil: no metrics

	// OnError is told of every repair by Watch that failed: object is
	// "addresses", "rules" or "accepts". It is called from Watch's goroutine. May be nil.
	OnError func(object string, err error)

	linkType string // link type in place of dummy, for tests; empty: dummyLink
}

var generationPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// withDefaults returns the checked configuration.
func (c Config) withDefaults() (Config, error) {
	if c.Generation != "" && !generationPattern.MatchString(c.Generation) {
		return c, fmt.Errorf("generation %q: want 1 to 64 letters, digits, '.', '_' or '-'", c.Generation)
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
			return nil, fmt.Errorf("local IP %s: a zone is not possible here", a)
		case a.IsUnspecified(), a.IsMulticast():
			return nil, fmt.Errorf("local IP %s: not a unicast address", a)
		}
		out = append(out, a)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

// Host converges the network setup of one namespace to one Config. Its methods
// may be called concurrently.
type Host struct {
	cfg     Config
	log     *slog.Logger
	kernel  *kernel
	metrics metrics

	localIPs []netip.Addr // the configured addresses that need setup; constant

	mu        sync.Mutex // serialises every change and the fields below
	wantAddrs bool       // EnsureAddresses was called, RemoveAddresses was not since
	wantRules bool       // the same of EnsureRules and RemoveRules
	saidLo    bool       // the fallback to lo was logged
	live      *live      // nil unless a service address needs it

	wantAccepts bool            // the same of EnsureAccepts and RemoveAccepts
	saidDrops   map[string]bool // of foreign chains: what was logged

	// followed are the foreign chains whose rules decide whether we need some
	// there. Watch reads it without the lock.
	followed atomic.Pointer[map[tableID][]string]

	repairs atomic.Int64      // by Watch, failed ones too
	adopted map[string]string // object → the other generation that has it, as logged
	present map[string]int    // object → socket that holds our presenceName
	before  predecessor

	absent     map[absence]time.Time // when each was first seen to be
	endsWithin time.Duration         // the constant, but for tests

	noSocketExpr bool // the kernel lacks the nftables socket expression
	noOwner      bool // the kernel lacks nftables tables with an owner
}

// New opens the netlink sockets and changes nothing yet.
func New(cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("network setup: %w", err)
	}
	h := &Host{cfg: cfg, log: cfg.Logger, localIPs: cfg.localIPs(), adopted: make(map[string]string), present: make(map[string]int), saidDrops: make(map[string]bool), absent: make(map[absence]time.Time), endsWithin: endsWithin}
	if h.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("network setup: register metrics: %w", err)
	}
	if h.kernel, err = openKernel(cfg.NetNS); err != nil {
		return nil, fmt.Errorf("network setup: %w", err)
	}
	return h, nil
}

// errNoGeneration guards what must be marked.
var errNoGeneration = errors.New("network setup: Config has no generation to mark it with")

// mayEnsure says why nothing may be set up.
func (h *Host) mayEnsure(ctx context.Context) error {
	if h.cfg.Generation == "" {
		return errNoGeneration
	}
	return ctx.Err()
}

// Close releases the sockets and changes no addresses. The rules that live only
// as long as their process (see EnsureRules) go with it.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wantAddrs, h.wantRules, h.wantAccepts = false, false, false
	h.withdraw(objectAddresses)
	h.withdraw(objectRules)
	h.withdraw(objectAccepts)
	return errors.Join(h.closeLive(), h.kernel.Close())
}

// localIPs are the configured addresses that need setup.
func (c Config) localIPs() []netip.Addr {
	return slices.DeleteFunc(slices.Clone(c.Addrs), netip.Addr.IsLoopback)
}
