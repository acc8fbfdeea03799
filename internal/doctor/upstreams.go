package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// upstream is a server that queries are forwarded to.
type upstream struct {
	Server
	cluster  bool // for the cluster domain
	root     bool // for the root zone
	forceTCP bool
	where    string // FILE:LINE of its first forward
	zone     string // the first zone of that
}

// upstreamExamination examines the upstreams from the node.
type upstreamExamination struct {
	*examination
	all     []upstream
	answers []bool // by all
}

// upstreams returns the servers of all forwards and their files, each once.
func (c *Config) upstreams(files map[string]resolvConf) []upstream {
	var all []upstream
	for _, f := range c.Forwards {
		to := slices.Clone(f.To)
		for _, path := range f.Files {
			for _, ns := range files[path].servers {
				if !c.own(netip.AddrPortFrom(ns, 53)) {
					to = append(to, Server{Addr: netip.AddrPortFrom(ns, 53)})
				}
			}
		}
		for _, s := range to {
			i := slices.IndexFunc(all, func(a upstream) bool { return a.Server == s })
			if i < 0 {
				all = append(all, upstream{Server: s, where: f.Where, zone: f.Zones[0]})
				i = len(all) - 1
			}
			all[i].cluster = all[i].cluster || slices.Contains(f.Zones, c.ClusterDomain)
			all[i].root = all[i].root || slices.Contains(f.Zones, ".")
			all[i].forceTCP = all[i].forceTCP || f.ForceTCP
		}
	}
	return all
}

// examineUpstreams queries every upstream from the node.
func (e *examination) examineUpstreams(ctx context.Context, files map[string]resolvConf) {
	all := e.upstreams(files)
	u := &upstreamExamination{examination: e, all: all, answers: make([]bool, len(all))}
	var work []func()
	for i, a := range all {
		if e.own(a.Addr) {
			e.find(nodeView, "forward-loop", fmt.Sprintf("%s: %s is forwarded to %s, nodens itself", a.where, a.zone, a.Addr))
			continue
		}
		work = append(work, func() { u.answers[i] = u.examine(ctx, a) })
	}
	parallel(work...)
	for i, a := range all {
		if u.answers[i] && a.root && !a.TLS {
			e.alive = append(e.alive, a.Addr)
		}
	}
	slices.SortFunc(e.alive, netip.AddrPort.Compare)
	u.findSilent()
}

// findSilent adds a finding for each upstream that does not answer. It is a fault
// if no other upstream of the zone answers.
func (e *upstreamExamination) findSilent() {
	for i, a := range e.all {
		if e.answers[i] || e.own(a.Addr) {
			continue
		}
		left := false
		for j, b := range e.all {
			left = left || e.answers[j] && b.zone == a.zone
		}
		s := Warning
		if !left {
			s = Fault
		}
		id := "upstream-silent"
		if a.cluster {
			id = "fallback-silent"
		}
		e.findAs(nodeView, id, s, fmt.Sprintf("%s: %s, upstream of %s, does not answer the node", a.where, a.Addr, a.zone), "")
	}
}

// examine reports whether the server answers by a transport that nodens uses.
func (e *upstreamExamination) examine(ctx context.Context, a upstream) bool {
	q := question(a.zone, dns.TypeSOA)
	if a.zone == "." {
		q = question(".", dns.TypeNS)
	}
	if a.TLS { // TLS itself is not examined
		return e.accepts(ctx, e.node, a.Addr)
	}
	var udp, tcp outcome
	parallel(
		func() { udp = e.query(ctx, e.node, "udp", a.Addr, q) },
		func() { tcp = e.query(ctx, e.node, "tcp", a.Addr, q.Copy()) },
	)
	if !udp.answered() && !tcp.answered() {
		return false
	}
	first := cmp.Or(udp.reply, tcp.reply)
	switch {
	case first.Rcode == dns.RcodeRefused:
		e.find(nodeView, "upstream-refuses", fmt.Sprintf("%s: %s refuses to answer for %s", a.where, a.Addr, a.zone))
	case !tcp.answered():
		s := Warning
		if a.forceTCP {
			s = Fault
		}
		e.findAs(nodeView, "upstream-no-tcp", s, fmt.Sprintf("%s: %s answers over UDP but not over TCP (%s)", a.where, a.Addr, tcp.why()), "")
	case !udp.answered() && !a.forceTCP:
		e.find(nodeView, "upstream-silent", fmt.Sprintf("%s: %s answers over TCP but not over UDP (%s)", a.where, a.Addr, udp.why()))
	}
	e.fact(nodeView, fmt.Sprintf("upstream %s of %s answers", a.Addr, a.zone))
	if udp.answered() && !a.cluster {
		e.examineLarge(ctx, a)
	}
	return true
}

// UDP payload sizes in bytes (RFC 6891 §6.2.5, RFC 9715).
const (
	largeSize = 4096
	safeSize  = 1232
)

// examineLarge queries for an answer that does not fit into one packet.
func (e *upstreamExamination) examineLarge(ctx context.Context, a upstream) {
	q := question(".", dns.TypeDNSKEY)
	if e.LargeName != "" {
		q = question(e.LargeName, dns.TypeTXT)
	}
	whole := e.query(ctx, e.node, "tcp", a.Addr, q.Copy().SetEdns0(largeSize, true))
	if !whole.answered() || whole.reply.Len() <= safeSize {
		return // the answer fits into one packet
	}
	if large := e.query(ctx, e.node, "udp", a.Addr, q.Copy().SetEdns0(largeSize, true)); large.answered() {
		return
	}
	what := fmt.Sprintf("%s: the answer of %s for %s, %d bytes, is lost over UDP", a.where, a.Addr, q.Question[0].Name, whole.reply.Len())
	if safe := e.query(ctx, e.node, "udp", a.Addr, q.Copy().SetEdns0(safeSize, true)); safe.answered() {
		e.find(nodeView, "large-lost", what+fmt.Sprintf("; with a limit of %d bytes it arrives, truncated", safeSize))
		return
	}
	e.findAs(nodeView, "large-lost", Fault, what+fmt.Sprintf(", even with a limit of %d bytes", safeSize), "")
}

// names joins addresses for display.
func names[T fmt.Stringer](list []T) string {
	var s []string
	for _, v := range list {
		s = append(s, v.String())
	}
	return strings.Join(s, ", ")
}
