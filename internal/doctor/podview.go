package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// examinePods looks at everything from each pod's network namespace.
func (e *examination) examinePods(ctx context.Context) {
	var work []func()
	for _, spec := range e.Pods {
		p, err := e.openPod(spec)
		switch {
		case errors.Is(err, errOwnNetns):
			e.fact(spec, "is in the host's network, and sees what the node sees")
		case errors.Is(err, errNoPod) && spec == Auto:
			e.fact(nodeView, "a pod's view was not looked at: "+err.Error())
		case err != nil:
			e.unexamined(fmt.Sprintf("pod %s: %v", spec, err))
		default:
			work = append(work, func() {
				defer p.Close()
				e.examinePod(ctx, p)
			})
		}
	}
	together(work...)
}

// examinePod looks from one pod.
func (e *examination) examinePod(ctx context.Context, p pod) {
	if err := p.do(func() error { return nil }); err != nil {
		e.unexamined(fmt.Sprintf("pod %s: %v", p.view, err))
		return
	}
	link, err := podLink(p.place)
	if err != nil {
		e.unexamined(fmt.Sprintf("%s: links: %v", p.view, err))
	}
	e.judgeMTU(p, link)
	if e.optedOut(p) {
		e.fact(p.view, "has opted out of redirection")
	}
	conf, known := e.podResolvConf(p)
	ask := e.asksOf(conf)
	results := make([]reach, len(ask))
	work := []func(){func() { e.examineSearch(ctx, p.place, conf.search, e.search) }}
	for i, addr := range ask {
		work = append(work, func() { results[i] = e.reach(ctx, p, addr) })
	}
	var other bool
	work = append(work, func() { other = e.reachesCluster(ctx, p) })
	together(work...)
	e.judgeCutOff(p, link, results, other)
	if known {
		e.judgeServers(p, conf, results)
	}
}

// asksOf lists what to ask from a pod: the local IPs, and what its resolv.conf
// names.
func (e *examination) asksOf(conf resolvConf) []netip.AddrPort {
	ask := slices.Clone(e.Addresses)
	for _, a := range conf.servers {
		if ap := netip.AddrPortFrom(a, 53); !slices.Contains(ask, ap) {
			ask = append(ask, ap)
		}
	}
	return ask
}

// reach is what came of asking an address from a pod.
type reach struct {
	addr       netip.AddrPort
	plain      string // who answers by the packet's way; "": nobody
	redirected string // who answers a socket below the pods' cgroup; "": nobody, or not tried
	tried      bool   // redirected was
	tcp        bool   // TCP works, one way or the other
	why        string // why plain is ""
}

// who answers the pod's own processes.
func (r reach) who() string {
	if r.tried {
		return r.redirected
	}
	return r.plain
}

func (e *examination) reach(ctx context.Context, p pod, addr netip.AddrPort) reach {
	r := reach{addr: addr}
	var tcp outcome
	var viaCgroup reply
	together(
		func() {
			who, o := e.who(ctx, p.place, "udp", addr)
			r.plain, r.why = who, o.why()
		},
		func() { tcp = e.ask(ctx, p.place, "tcp", addr, chaos("id.server.")) },
		func() {
			if !e.below {
				viaCgroup, r.tried = e.askRedirected(ctx, p, addr)
			}
		},
	)
	r.tcp = tcp.answered()
	if e.below { // packets go the way of sockets for this process, and nothing tells of their own
		r.tried, viaCgroup = true, reply{UDP: r.plain, TCP: r.tcp}
	}
	if r.tried {
		r.redirected, r.tcp = viaCgroup.UDP, viaCgroup.TCP
	}
	return r
}

// reachesCluster tells whether the pod reaches any upstream of the cluster's
// zone; true if there is none to ask.
func (e *examination) reachesCluster(ctx context.Context, p pod) bool {
	servers, reached := 0, make(chan bool, len(e.Forwards)*8)
	var work []func()
	for _, f := range e.Forwards {
		if !slices.Contains(f.Zones, e.ClusterDomain) {
			continue
		}
		for _, s := range f.To {
			servers++
			work = append(work, func() {
				_, o := e.who(ctx, p.place, "udp", s.Addr)
				reached <- o.answered()
			})
		}
	}
	go func() { together(work...); close(reached) }()
	any := servers == 0
	for r := range reached {
		any = any || r
	}
	return any
}

// judgeCutOff judges the pod's way to nodens; other says that the pod reaches
// the cluster's DNS by itself.
func (e *examination) judgeCutOff(p pod, link podLinkInfo, results []reach, other bool) {
	any := other
	for _, r := range results {
		any = any || r.who() != ""
	}
	if !any && len(results) > 0 {
		what := fmt.Sprintf("from this pod neither %s nor the cluster's DNS answers (%s)", results[0].addr, results[0].why)
		if cni, ok := e.swallower(link); ok {
			what += "; " + cni.what
		}
		e.find(p.view, "pod-cut-off", what)
		return
	}
	if !other && !e.has("fallback-silent") {
		e.find(p.view, "pod-fallback-silent", "the cluster's DNS does not answer this pod, and answers the node")
	}
	for _, r := range results {
		if slices.Contains(e.Addresses, r.addr) {
			e.judgeReach(p, link, r)
		}
	}
}

// has tells whether there is a finding of a kind already.
func (e *examination) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.report.Findings, func(f Finding) bool { return f.ID == id })
}

// judgeReach judges one local IP.
func (e *examination) judgeReach(p pod, link podLinkInfo, r reach) {
	served := e.served[r.addr]
	switch {
	case served == "":
		// The node gets no answer either; that has been said.
		e.fact(p.view, fmt.Sprintf("%s is answered by %s", r.addr, orNobody(r.who())))
		return
	case r.tried && (r.plain != r.redirected || r.redirected == ""):
		e.judgeRedirected(p, r)
	case e.below && isNodens(r.redirected):
		e.fact(p.view, fmt.Sprintf("%s is answered by %s; by which way cannot be told from below the pods' cgroup", r.addr, r.redirected))
	case e.below:
		e.judgeRedirected(p, r)
	case r.plain == "":
		e.judgeLost(p, link, r)
		return
	case !isNodens(r.plain) && isNodens(served):
		e.find(p.view, "pod-other-server", fmt.Sprintf("%s is answered by %s, while the node is answered by %s", r.addr, r.plain, served))
	default:
		e.fact(p.view, fmt.Sprintf("%s is reached by address%s, answered by %s%s", r.addr, inFront(r.addr), r.plain, r.also()))
	}
	if r.who() != "" && !r.tcp {
		e.find(p.view, "pod-tcp-lost", fmt.Sprintf("%s answers this pod over UDP and not over TCP", r.addr))
	}
}

// inFront tells of an address that may be a Service's: an untracked packet does
// not get to a service proxy.
func inFront(addr netip.AddrPort) string {
	if addr.Addr().IsLinkLocalUnicast() {
		return ""
	}
	return ", in front of any service proxy"
}

// also tells that redirection was looked at.
func (r reach) also() string {
	if !r.tried {
		return ""
	}
	return "; a socket below the pods' cgroup gets the same"
}

func orNobody(who string) string {
	if who == "" {
		return "nobody"
	}
	return who
}

// judgeLost says why queries do not arrive that the node could send.
func (e *examination) judgeLost(p pod, link podLinkInfo, r reach) {
	what := fmt.Sprintf("%s answers the node and not this pod (%s)", r.addr, r.why)
	if cni, ok := e.swallower(link); ok {
		e.findAs(p.view, "cni-swallows", "", what+"; "+cni.what, cni.advice)
		return
	}
	e.find(p.view, "pod-lost", what)
}

// judgeServers judges the nameservers of the pod's resolv.conf.
func (e *examination) judgeServers(p pod, conf resolvConf, results []reach) {
	used, lost := false, false
	for _, r := range results {
		if !slices.Contains(conf.servers, r.addr.Addr()) || r.addr.Port() != 53 {
			continue
		}
		if !slices.Contains(e.Addresses, r.addr) {
			e.fact(p.view, fmt.Sprintf("its resolv.conf names %s, answered by %s", r.addr.Addr(), orNobody(r.who())))
		}
		used = used || isNodens(r.who())
		lost = lost || slices.Contains(e.Addresses, r.addr) // it would be nodens if it answered
		if r.addr.Addr().IsLoopback() && r.who() == "" {
			e.find(p.view, "pod-loopback-resolver", fmt.Sprintf("its resolv.conf names %s, where nothing answers", r.addr.Addr()))
		}
	}
	if !used && !lost && len(conf.servers) > 0 {
		e.find(p.view, "pod-elsewhere", fmt.Sprintf("its resolv.conf names %s, where nodens does not answer", names(conf.servers)))
	}
}
