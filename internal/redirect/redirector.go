package redirect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/supervise"
)

// Config is what a Redirector needs for the life of the process.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Workers    int    // UDP sockets of each target
	Identity   string // the process's answer to id.server
	PodLogs    string // directory, see DefaultPodLogs
	Reload     func() // requests a reload of the configuration

	// Restarted: this process replaces one that died under the same supervisor. An
	// operator's teardown holds for it too.
	Restarted bool

	// TakePorts makes the kernel give new queries to this process only, although a
	// frozen one shares the ports.
	TakePorts func() error

	// InputBlocked returns an error if netfilter drops what pods send to the targets.
	InputBlocked func() error

	// Queries returns the number of queries that the server got from others. Nil:
	// unknown.
	Queries func() uint64

	// Pinned is called with true when this process has attached and pinned programs, and
	// with false when no process has any pinned.
	Pinned func(bool)

	// Answered is called for each answer of a target while sockets are
	// redirected, Withdrawn when new lookups no longer are.
	Answered  func(supervise.Report)
	Withdrawn func()
}

// Redirector keeps the redirection of one plan at a time. A failure is logged,
// counted and retried; the daemon serves by address meanwhile. Plan and Learn are
// safe for concurrent use with all methods. The others belong to one goroutine at
// a time.
type Redirector struct {
	cfg    Config
	gate   *server.Gate
	status *status

	mu        sync.Mutex // guards what follows
	plan      Plan
	session   *session // nil: not open
	endpoints learned
	opened    bool // Open was called
	loaded    bool // this process has loaded programs
}

// learned are the endpoints of the cluster's DNS.
type learned struct {
	addrs []netip.AddrPort
	known bool // the API server has answered
}

// New returns a Redirector whose plan is off. Its metrics are registered.
func New(cfg Config) *Redirector {
	gate := server.NewGate()
	return &Redirector{cfg: cfg, gate: gate, status: newStatus(cfg.Logger, cfg.Registerer, gate)}
}

// Gate refuses queries to targets from outside the node.
func (r *Redirector) Gate() *server.Gate { return r.gate }

// Plan returns the plan of the last Open.
func (r *Redirector) Plan() Plan {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plan
}

// Reason returns why redirection does not work, or "".
func (r *Redirector) Reason() string {
	r.status.mu.Lock()
	defer r.status.mu.Unlock()
	return r.status.reason
}

// Open loads the programs for plan and attaches nothing yet. Call it before the
// targets are served. An earlier plan must be closed.
func (r *Redirector) Open(ctx context.Context, plan Plan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reopened := r.opened
	r.opened = true
	r.plan = plan
	s := &session{cfg: r.cfg, plan: plan, status: r.status, background: newTasks(ctx)}
	r.session = s
	switch {
	case !plan.Wanted():
		r.status.off()
		if s.clearing = (r.loaded || plan.Clears) && isAdopted(plan.PinDir); s.clearing {
			s.background.run(s.clear)
		} else if !isAdopted(plan.PinDir) {
			r.cfg.Pinned(false)
		}
		return
	case plan.Err != nil:
		s.reset(plan.Err)
		return
	}
	err := s.load(r.endpoints, !r.loaded)
	r.loaded = r.loaded || s.kernel != nil
	if err != nil {
		if reopened && errors.Is(err, bpf.ErrPermission) {
			err = fmt.Errorf("%w; nodens gave up its capabilities at the start, when redirection was off: restart it", err)
		}
		s.reset(err)
		return
	}
	s.reportSkipped()
	uplinks := &uplinkGate{gate: r.gate, log: r.cfg.Logger, named: plan.Uplinks}
	uplinks.update()
	s.background.run(uplinks.follow)
	r.status.set(stateWaiting)
}

// Start starts redirection. Call it when the targets are served. In mode auto,
// redirection starts when nodens finds that pods do not reach the local addresses,
// or at once if a predecessor redirects.
func (r *Redirector) Start(ctx context.Context) {
	if s := r.current(); s != nil {
		s.start(ctx)
	}
}

// Keeps reports whether plan equals the open plan and the open plan has not failed.
func (r *Redirector) Keeps(plan Plan) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session != nil && !r.session.broken && r.plan.Equal(plan)
}

// GiveUp is for a plan whose targets cannot be served.
func (r *Redirector) GiveUp(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan.Err = err
	if r.session != nil && !r.session.broken {
		r.session.reset(err)
	}
}

// NeedsBPF reports whether there is something to redirect or to remove.
func (r *Redirector) NeedsBPF() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plan.Wanted() || r.session != nil && r.session.clearing
}

// Learn replaces the endpoints of the cluster's DNS, of both address families.
// They are the fallbacks unless the user has set others. If there are none, the
// upstreams of the cluster domain are.
func (r *Redirector) Learn(endpoints []netip.AddrPort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endpoints = learned{addrs: endpoints, known: true}
	if r.session == nil {
		return nil
	}
	return r.session.setFallbacks(r.endpoints)
}

// Forget prepares for the end of the process. It removes the endpoints that were
// learned for the cluster IP: nodens cannot update them any more, but the service
// proxy can.
func (r *Redirector) Forget() error {
	if s := r.current(); s != nil {
		return s.forget()
	}
	return nil
}

// Withdraw sends new lookups to the fallbacks. Queries that have arrived still
// get an answer.
func (r *Redirector) Withdraw() error {
	if s := r.current(); s != nil {
		return s.withdraw()
	}
	return nil
}

// Close ends the plan. What is pinned stays: pods use the fallbacks.
func (r *Redirector) Close() error {
	r.mu.Lock()
	s := r.session
	r.session = nil
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.close()
}

func (r *Redirector) current() *session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}
