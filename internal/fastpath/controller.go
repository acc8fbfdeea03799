package fastpath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// Plan is the fast path that one configuration wants.
type Plan struct {
	Mode     config.FastpathMode
	Entries  int
	Lease    time.Duration
	OptOut   []config.PodName
	Kubepods string // directory; empty: find it
	PodLogs  string // directory
}

// NewPlan returns the plan of a configuration.
func NewPlan(cfg *config.Config, kubepods, podLogs string) Plan {
	f := cfg.Fastpath()
	return Plan{Mode: f.Mode, Entries: f.Entries, Lease: f.Lease, OptOut: f.OptOut, Kubepods: kubepods, PodLogs: podLogs}
}

// Wanted reports whether the kernel should answer queries.
func (p Plan) Wanted() bool { return p.Mode != config.FastpathOff }

// bytes is the memory of the kernel's tables.
func (p Plan) bytes() int64 {
	return bpf.FastpathConfig{Entries: p.Entries}.Bytes()
}

// Equal reports whether p and o want the same.
func (p Plan) Equal(o Plan) bool {
	return p.Mode == o.Mode && p.Entries == o.Entries && p.Lease == o.Lease && slices.Equal(p.OptOut, o.OptOut) &&
		p.Kubepods == o.Kubepods && p.PodLogs == o.PodLogs
}

// Statistics get the kernel's answers by question and by client, see bpf.FastpathConfig.
type Statistics interface {
	KernelAnswered(list int, name []byte, denied bool, n uint32)
	KernelAsked(list int, client netip.Addr, n uint32)
}

// Controller keeps the fast path of one plan at a time. Without one, or if the node
// cannot have it, its methods do nothing, and the daemon answers all queries. Open and
// Close belong to one goroutine at a time; the other methods are safe for concurrent
// use.
type Controller struct {
	log     *slog.Logger
	clients clients
	counts  totals
	stats   Statistics
	most    int64 // bytes of the kernel's tables
	taken   int64 // bytes of the cache's memory that the tables have
	plan    Plan
	links   *linkFollower // nil: not open

	mu     sync.RWMutex // held while kernel is used, so that it is not closed meanwhile
	kernel *bpf.Fastpath
}

// New returns a Controller without a plan. Its metrics are registered. The tables of
// the kernel may use most bytes. Those of the first plan, and of later ones that are
// not larger, have the memory that Reserved returns.
func New(log *slog.Logger, reg prometheus.Registerer, most int64, first Plan, stats Statistics) *Controller {
	c := &Controller{log: log, stats: stats, most: most, plan: Plan{Mode: config.FastpathOff}}
	if n := first.bytes(); first.Wanted() && n <= most {
		c.taken = n
	}
	c.clients.init()
	reg.MustRegister(newCollector(c))
	return c
}

// Open loads the program of plan. It attaches nothing yet. An earlier plan must be
// closed. If the node cannot have the fast path, Open logs that.
func (c *Controller) Open(plan Plan) {
	c.plan = plan
	if !plan.Wanted() {
		return
	}
	if n := plan.bytes(); n > c.most {
		c.unavailable(fmt.Errorf("fastpath: %d entries need %d MiB, more than half of the cache's memory; lower the option entries", plan.Entries, n>>20))
		return
	}
	kernel, err := bpf.OpenFastpath(bpf.FastpathConfig{Entries: plan.Entries, Answered: c.stats.KernelAnswered, Asked: c.stats.KernelAsked})
	if err != nil {
		c.unavailable(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kernel = kernel
}

// unavailable logs why the kernel answers nothing.
func (c *Controller) unavailable(err error) {
	const msg = "the kernel answers no queries; nodens answers all of them"
	if c.plan.Mode == config.FastpathAuto && (errors.Is(err, bpf.ErrKernel) || errors.Is(err, bpf.ErrPermission)) {
		c.log.Info(msg, "reason", err)
		return
	}
	c.log.Error(msg, "error", err)
}

// Plan returns the plan of the last Open.
func (c *Controller) Plan() Plan { return c.plan }

// Reserved returns the bytes that the tables take from the memory of the cache.
func (c *Controller) Reserved() int64 { return c.taken }

// Check returns an error if the process has no memory for the tables of plan because
// it started with a smaller plan, or with none. Then it has no file descriptors for the
// program either.
func (c *Controller) Check(plan Plan) error {
	if n := plan.bytes(); plan.Wanted() && n > c.taken && n <= c.most { // see Open for more
		return fmt.Errorf("fastpath: %d entries need %d KiB, and nodens took %d KiB of the cache's memory for them at its start: restart nodens",
			plan.Entries, n>>10, c.taken>>10)
	}
	return nil
}

// Active reports whether the program is loaded.
func (c *Controller) Active() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kernel != nil
}

// Start attaches the program to pods' interfaces from now on.
func (c *Controller) Start(ctx context.Context) {
	if !c.Active() || c.links != nil {
		return
	}
	c.links = newLinkFollower(c)
	c.links.start(context.WithoutCancel(ctx))
}

// Close removes the program from all interfaces. Queries that arrive later come to
// the daemon's sockets.
func (c *Controller) Close() error {
	if c.links != nil {
		c.links.stop()
		c.links = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel == nil {
		return nil
	}
	c.counts.keep(c.kernel)
	c.clients.use(nil, nil)
	err := c.kernel.Close()
	c.kernel = nil
	return err
}

// Listen implements server.Fastpath.
func (c *Controller) Listen(addrs []netip.AddrPort) uint32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.kernel == nil {
		return 0
	}
	return c.kernel.Listen(addrs)
}

// Put implements server.Fastpath.
func (c *Controller) Put(a server.KernelAnswer) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.kernel == nil {
		return false
	}
	answer := bpf.Answer(a)
	return c.kernel.Put(&answer)
}

// Withdraw implements cache.Kernel.
func (c *Controller) Withdraw(key []byte) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.kernel != nil {
		c.kernel.Withdraw(key)
	}
}

// Hits implements cache.Kernel.
func (c *Controller) Hits(key []byte) uint32 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.kernel == nil {
		return 0
	}
	return c.kernel.Hits(key)
}
