package fastpath

import (
	"cmp"
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

// fits returns an error if the size of the kernel's tables, in bytes, exceeds most.
func (p Plan) fits(most int64) error {
	if n := p.bytes(); n > most {
		return fmt.Errorf("fastpath: %d entries need %d MiB, more than half of the cache's memory; lower the option entries and restart nodens", p.Entries, n>>20)
	}
	return nil
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

// Controller lets the kernel answer as the current plan says. The first plan loads the
// program, for which nodens later lacks the privileges; it stays loaded until the process
// ends. Without a program, or with a plan that does not want one, the daemon answers all
// queries. Use, Start and Close belong to one goroutine at a time; the other methods are
// safe for concurrent use.
type Controller struct {
	log     *slog.Logger
	clients clients
	most    int64         // bytes that the kernel's tables may have
	taken   int64         // bytes of the cache's memory that they have
	kernel  *bpf.Fastpath // nil: not loaded
	failed  error         // why the first plan's program could not be loaded
	links   *linkFollower // nil: not started
	ports   sync.Once     // logs the limit of ports

	mu   sync.RWMutex
	plan Plan
}

// New returns a Controller and loads the program if first wants it. It attaches nothing
// yet. If the node cannot have the fast path, New logs that. most limits the bytes
// of the kernel's tables; Reserved returns what they use.
func New(log *slog.Logger, reg prometheus.Registerer, most int64, first Plan, stats Statistics) *Controller {
	c := &Controller{log: log, most: most, plan: first}
	c.clients.init()
	if first.Wanted() {
		if c.kernel, c.failed = load(first, most, stats); c.failed != nil {
			c.unavailable()
		} else {
			c.taken = first.bytes()
		}
	}
	reg.MustRegister(newCollector(c))
	return c
}

func load(p Plan, most int64, stats Statistics) (*bpf.Fastpath, error) {
	if err := p.fits(most); err != nil {
		return nil, err
	}
	return bpf.OpenFastpath(bpf.FastpathConfig{Entries: p.Entries, Answered: stats.KernelAnswered, Asked: stats.KernelAsked})
}

// unavailable logs why the kernel answers nothing.
func (c *Controller) unavailable() {
	const msg = "the kernel answers no queries; nodens answers all of them"
	if c.plan.Mode == config.FastpathAuto && (errors.Is(c.failed, bpf.ErrKernel) || errors.Is(c.failed, bpf.ErrPermission)) {
		c.log.Info(msg, "reason", c.failed)
		return
	}
	c.log.Error(msg, "error", c.failed)
}

// Plan returns the plan in use.
func (c *Controller) Plan() Plan { return c.plan }

// Reserved returns the bytes that the tables take from the memory of the cache.
func (c *Controller) Reserved() int64 { return c.taken }

// Check returns an error if the process has no memory for the tables of plan because
// it started with a smaller plan, or with none. Then it has no file descriptors for the
// program either. If the program could not be loaded, Use logs that.
func (c *Controller) Check(plan Plan) error {
	if !plan.Wanted() || c.failed != nil {
		return nil
	}
	n := plan.bytes()
	if n <= c.taken {
		return nil
	}
	if err := plan.fits(c.most); err != nil {
		return err
	}
	return fmt.Errorf("fastpath: %d entries need %d KiB, and nodens took %d KiB of the cache's memory for them at its start: restart nodens",
		plan.Entries, n>>10, c.taken>>10)
}

// Active reports whether the program is loaded and wanted.
func (c *Controller) Active() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kernel != nil && c.plan.Wanted()
}

// Use changes the plan, which Check has accepted. All leases end, so that the options
// take effect now. Tables larger than plan wants stay.
func (c *Controller) Use(ctx context.Context, plan Plan) error {
	c.stop()
	c.mu.Lock()
	c.plan = plan
	c.mu.Unlock()
	switch {
	case !plan.Wanted():
		return c.Close()
	case c.kernel == nil:
		c.unavailable()
	default:
		c.kernel.Revoke()
		c.Start(ctx)
	}
	return nil
}

// Start attaches the program to pods' interfaces from now on.
func (c *Controller) Start(ctx context.Context) {
	if c.Active() {
		c.links = newLinkFollower(c)
		c.links.start(context.WithoutCancel(ctx))
	}
}

// stop ends attaching. No client gets a lease from now on.
func (c *Controller) stop() {
	if c.links != nil {
		c.links.stop()
		c.links = nil
	}
	c.clients.use(nil, nil)
}

// Close removes the program from all interfaces. Queries that arrive later come to
// the daemon's sockets. Counters stay readable.
func (c *Controller) Close() error {
	c.stop()
	if c.kernel == nil {
		return nil
	}
	c.kernel.Listen(nil)
	var errs []error
	for _, i := range c.kernel.Attached() {
		errs = append(errs, c.kernel.Detach(i))
	}
	return errors.Join(errs...)
}

// Listen implements server.Fastpath. If there are too many ports, the kernel answers on
// the lowest ones.
func (c *Controller) Listen(addrs []netip.AddrPort) uint32 {
	if c.kernel == nil {
		return 0
	}
	slices.SortFunc(addrs, func(a, b netip.AddrPort) int { return cmp.Compare(a.Port(), b.Port()) })
	if ports := portsOverLimit(addrs); len(ports) > 0 {
		c.ports.Do(func() {
			c.log.Warn("the kernel answers on the lowest ports only; nodens answers on the others", "limit", bpf.MaxFastPorts, "ports", ports)
		})
	}
	return c.kernel.Listen(addrs)
}

// portsOverLimit returns the ports of addrs, which are sorted by port, that the kernel
// does not look at.
func portsOverLimit(addrs []netip.AddrPort) []uint16 {
	var ports []uint16
	for _, a := range addrs {
		ports = append(ports, a.Port())
	}
	ports = slices.Compact(ports)
	return ports[min(len(ports), bpf.MaxFastPorts):]
}

// Put implements server.Fastpath.
func (c *Controller) Put(a server.KernelAnswer) bool {
	answer := bpf.Answer(a)
	return c.kernel != nil && c.kernel.Put(&answer)
}

// Withdraw implements cache.Kernel.
func (c *Controller) Withdraw(key []byte) {
	if c.kernel != nil {
		c.kernel.Withdraw(key)
	}
}

// Hits implements cache.Kernel.
func (c *Controller) Hits(key []byte) uint32 {
	if c.kernel == nil {
		return 0
	}
	return c.kernel.Hits(key)
}
