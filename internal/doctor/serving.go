package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// examineServing looks at the local IPs from the node: are they there, does
// anybody answer, and is it nodens?
func (e *examination) examineServing(ctx context.Context) {
	host := e.hostState(ctx)
	var mu sync.Mutex
	var all []func()
	for _, addr := range e.Addresses {
		all = append(all, func() {
			who := e.examineAddress(ctx, addr, slices.Contains(host.Missing, addr.Addr()))
			mu.Lock()
			defer mu.Unlock()
			e.served[addr] = who
		})
	}
	together(all...)
}

// hostState tells what netsetup finds, and notes what is not a matter of one
// address.
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

// examineAddress returns who answers at addr.
func (e *examination) examineAddress(ctx context.Context, addr netip.AddrPort, missing bool) string {
	who, o := e.who(ctx, e.node, "udp", addr)
	holders := e.holdersOf(addr.Port(), addr.Addr())
	switch {
	case who == "" && missing:
		e.find(nodeView, "address-missing", fmt.Sprintf("%s is on no link of this node", addr.Addr()))
		return ""
	case who == "":
		e.silentAddress(addr, o, holders)
		return ""
	case !isNodens(who) && heldByNodens(holders):
		who = "nodens of another version" // from before it said who it is
	case !isNodens(who):
		e.find(nodeView, "other-server", fmt.Sprintf("%s is answered by %s%s", addr, who, heldBy(holders)))
	}
	e.fact(nodeView, fmt.Sprintf("%s is answered by %s", addr, who))
	if tcp := e.ask(ctx, e.node, "tcp", addr, chaos("id.server.")); !tcp.answered() {
		e.find(nodeView, "tcp-lost", fmt.Sprintf("%s answers over UDP and not over TCP (%s)", addr, tcp.why()))
	}
	return who
}

// silentAddress tells apart why nobody answers at addr.
func (e *examination) silentAddress(addr netip.AddrPort, o outcome, holders []Holder) {
	what := fmt.Sprintf("%s does not answer the node (%s)", addr, o.why())
	switch {
	case e.Holders != nil && len(holders) == 0:
		e.find(nodeView, "not-serving", what+", and no process listens there")
	case len(holders) > 0 && heldByStranger(holders):
		e.find(nodeView, "port-held", what+heldBy(holders))
	case len(holders) > 0:
		e.find(nodeView, "hung", what+heldBy(holders))
	default:
		e.find(nodeView, "not-serving", what)
	}
}

// holdersOf lists the sockets on a port; nothing if that is not known.
func (e *examination) holdersOf(port uint16, addrs ...netip.Addr) []Holder {
	if e.Holders == nil {
		return nil
	}
	h, err := e.Holders(port, addrs...)
	if err != nil {
		e.unexamined(fmt.Sprintf("who holds port %d: %v", port, err))
	}
	return h
}

// programName is the beginning of the daemon's name in /proc/PID/comm.
const programName = "nodens"

func isOurs(h Holder) bool { return strings.HasPrefix(h.Comm, programName) }

func heldByNodens(holders []Holder) bool { return slices.ContainsFunc(holders, isOurs) }

// heldByStranger tells whether a process that is visible and not nodens has a
// socket.
func heldByStranger(holders []Holder) bool {
	return slices.ContainsFunc(holders, func(h Holder) bool { return h.PID != 0 && !isOurs(h) })
}

// heldBy names the processes, each once.
func heldBy(holders []Holder) string {
	var names []string
	for _, h := range holders {
		n := "a process that is not visible from here"
		if h.PID != 0 {
			n = fmt.Sprintf("%q (pid %d)", h.Comm, h.PID) // a process may call itself anything
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

// examinePorts looks for strangers on the daemon's other ports.
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

// orAny is addrs, or the local IPs and loopback for a port on all addresses.
func (e *examination) orAny(addrs []netip.Addr) []netip.Addr {
	if len(addrs) > 0 {
		return addrs
	}
	addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, a := range e.Addresses {
		addrs = append(addrs, a.Addr())
	}
	return addrs
}
