package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// servingExamination examines the local IPs from the node.
type servingExamination struct {
	*examination
	missing []netip.Addr // local IPs that no link has
}

// examineServing checks the local IPs from the node: whether a link has them,
// whether a server answers, and whether that is nodens.
func (e *examination) examineServing(ctx context.Context) {
	state := e.hostState(ctx)
	e.filters = state.Filters
	s := servingExamination{e, state.Missing}
	var mu sync.Mutex
	var all []func()
	for _, addr := range e.Addresses {
		all = append(all, func() {
			who := s.examine(ctx, addr)
			mu.Lock()
			defer mu.Unlock()
			e.served[addr] = who
		})
	}
	parallel(all...)
}

// hostState returns what netsetup finds. It adds the findings that do not concern
// a single address.
func (e *examination) hostState(ctx context.Context) HostState {
	if e.Host == nil {
		return HostState{}
	}
	s, err := e.Host(ctx)
	if err != nil {
		e.unexamined(fmt.Sprintf("the host's links and rules: %v", err))
		return HostState{}
	}
	for _, p := range s.Problems {
		e.find(nodeView, "host-drift", p)
	}
	for _, c := range s.Drops {
		e.find(nodeView, "firewall-drops", c)
	}
	return s
}

// examine returns the server that answers at addr, or "".
func (e servingExamination) examine(ctx context.Context, addr netip.AddrPort) string {
	who, o := e.identify(ctx, e.node, addr)
	holders := e.holdersOf(addr.Port(), addr.Addr())
	switch {
	case who == "" && slices.Contains(e.missing, addr.Addr()):
		e.findUnserved("address-missing", addr, fmt.Sprintf("no link of this node has %s", addr.Addr()))
		return ""
	case who == "":
		e.findSilent(addr, o, holders)
		return ""
	case !isNodens(who) && heldByNodens(holders):
		who = "nodens of another version" // one without id.server
	case !isNodens(who):
		e.find(nodeView, "other-server", fmt.Sprintf("%s is answered by %s%s", addr, who, heldBy(holders)))
	}
	e.fact(nodeView, fmt.Sprintf("%s is answered by %s", addr, who))
	if tcp := e.query(ctx, e.node, "tcp", addr, chaos("id.server.")); !tcp.answered() {
		e.find(nodeView, "tcp-lost", fmt.Sprintf("%s answers over UDP but not over TCP (%s)", addr, tcp.why()))
	}
	return who
}

// findSilent adds a finding that says why no server answers at addr.
func (e servingExamination) findSilent(addr netip.AddrPort, o outcome, holders []Holder) {
	what := fmt.Sprintf("%s does not answer the node (%s)", addr, o.why())
	switch {
	case e.Holders != nil && len(holders) == 0:
		e.findUnserved("not-serving", addr, what+", and no process listens there")
	case len(holders) > 0 && heldByOther(holders):
		e.find(nodeView, "port-held", what+heldBy(holders))
	case len(holders) > 0:
		e.find(nodeView, "hung", what+heldBy(holders))
	default:
		e.findUnserved("not-serving", addr, what)
	}
}

// findUnserved adds a finding of kind id. It is only a warning if the fallback serves
// pods meanwhile.
func (e servingExamination) findUnserved(id string, addr netip.AddrPort, what string) {
	if _, redirected := e.inForce.Targets[addr]; redirected && e.inForce.Attached && !e.inForce.Alive {
		e.findAs(nodeView, id, Warning, what+"; redirection sends the pods' sockets to the fallback", "")
		return
	}
	e.find(nodeView, id, what)
}

// holdersOf returns the sockets on a port, or nil if they are unknown.
func (e *examination) holdersOf(port uint16, addrs ...netip.Addr) []Holder {
	if e.Holders == nil {
		return nil
	}
	h, err := e.Holders(port, addrs...)
	if err != nil {
		e.unexamined(fmt.Sprintf("sockets on port %d: %v", port, err))
	}
	return h
}

// programName is the beginning of the daemon's name in /proc/PID/comm.
const programName = "nodens"

func isOurs(h Holder) bool { return strings.HasPrefix(h.Comm, programName) }

func heldByNodens(holders []Holder) bool { return slices.ContainsFunc(holders, isOurs) }

// heldByOther reports whether a visible process other than nodens has a socket.
func heldByOther(holders []Holder) bool {
	return slices.ContainsFunc(holders, func(h Holder) bool { return h.PID != 0 && !isOurs(h) })
}

// heldBy names each process once.
func heldBy(holders []Holder) string {
	var names []string
	for _, h := range holders {
		n := "a process that is not visible from here"
		if h.PID != 0 {
			n = fmt.Sprintf("%q (pid %d)", h.Comm, h.PID) // quoted: a process chooses its own name
		}
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; the port is held by " + strings.Join(names, ", ")
}

// examinePorts looks for other processes on the daemon's admin ports.
func (e *examination) examinePorts() {
	for _, p := range e.Ports {
		holders := slices.DeleteFunc(e.holdersOf(p.Port, e.orAny(p.Addrs)...), func(h Holder) bool {
			return h.Network != "tcp" || h.PID == 0 || isOurs(h)
		})
		if len(holders) > 0 {
			e.find(nodeView, "port-held", fmt.Sprintf("port %d of %s%s", p.Port, p.Name, heldBy(holders)))
		}
	}
}

// examineKernelAnswers says for each pod's interface whether the kernel answers there. If
// the user names pods, sayKernelAnswers says it for those pods instead.
func (e *examination) examineKernelAnswers(ctx context.Context) {
	if e.KernelAnswers == nil {
		return
	}
	e.kernel = e.KernelAnswers(ctx)
	named := slices.ContainsFunc(e.Pods, func(spec string) bool { return spec != Auto })
	for _, i := range slices.Sorted(maps.Keys(e.kernel)) {
		if i == 0 || !named {
			e.fact(nodeView, "fastpath: "+e.kernel[i])
		}
	}
}

// examineCuts asks a daemon that answers whether it still cuts the search path.
func (e *examination) examineCuts(ctx context.Context) {
	if _, serving := (searchExamination{examination: e}).nodens(); !serving || e.CutsOff == nil {
		return
	}
	zones, err := e.CutsOff(ctx)
	if err != nil {
		e.unexamined(fmt.Sprintf("search_cut: %v", err))
	}
	for _, z := range zones {
		e.find(nodeView, "search-cut-off", fmt.Sprintf("search_cut is off for zone %s: its upstream answers NXDOMAIN for a name and has data below it", z))
	}
}
