package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// podExamination examines DNS from one pod.
type podExamination struct {
	*examination
	pod
	link podLinkInfo
}

// examinePods examines DNS from each pod's network namespace.
func (e *examination) examinePods(ctx context.Context) {
	var work []func()
	for _, spec := range e.Pods {
		p, err := e.proc.openPod(spec, e.Redirect.Cgroup, e.conf.servers)
		switch {
		case errors.Is(err, errHostNetwork):
			e.fact(spec, "is in the host's network, and has the view of the node")
		case errors.Is(err, errNoPod) && spec == Auto:
			e.fact(nodeView, "no pod was examined: "+err.Error())
		case errors.Is(err, errHidden) && spec == Auto:
			e.unexamined("any pod: " + err.Error())
		case err != nil:
			e.unexamined(fmt.Sprintf("pod %s: %v", spec, err))
		default:
			work = append(work, func() {
				defer p.Close()
				e.examinePod(ctx, p)
			})
		}
	}
	parallel(work...)
}

// examinePod examines DNS from one pod.
func (e *examination) examinePod(ctx context.Context, p pod) {
	if err := p.do(func() error { return nil }); err != nil {
		e.unexamined(fmt.Sprintf("pod %s: %v", p.view, err))
		return
	}
	link, err := podLink(p.place)
	if err != nil {
		e.unexamined(fmt.Sprintf("%s: links: %v", p.view, err))
	}
	x := &podExamination{e, p, link}
	x.sayKernelAnswers()
	if e.proc.isSandboxed(p.place) {
		e.unexamined(fmt.Sprintf("%s: is in a sandbox with a network stack of its own, such as gVisor: doctor cannot query from it, and its sockets are not redirected", p.view))
		return
	}
	x.examine(ctx)
}

func (e *podExamination) examine(ctx context.Context) {
	e.checkMTU()
	if e.optedOut() {
		e.fact(e.view, "has opted out of redirection")
	}
	conf, known := e.resolvConf()
	servers := e.serversOf(conf)
	results := make([]reach, len(servers))
	work := []func(){func() { e.examineSearch(ctx, e.view, conf.search, e.conf.search) }}
	for i, addr := range servers {
		work = append(work, func() { results[i] = e.reach(ctx, addr) })
	}
	var clusterDNS bool
	work = append(work, func() { clusterDNS = e.reachesCluster(ctx) })
	parallel(work...)
	e.checkReachability(results, clusterDNS)
	if known {
		e.checkNameservers(conf, results)
	}
}

// sayKernelAnswers says whether the kernel answers on the host's end of the pod's link.
func (e *podExamination) sayKernelAnswers() {
	if what := e.kernel[e.link.peer]; what != "" && e.link.peer != 0 {
		e.fact(e.view, "fastpath: "+what)
	}
}

// serversOf returns the servers to query from a pod: the local IPs, and those in
// its resolv.conf.
func (c *Config) serversOf(conf resolvConf) []netip.AddrPort {
	servers := slices.Clone(c.Addresses)
	for _, a := range conf.servers {
		if ap := netip.AddrPortFrom(a, 53); !slices.Contains(servers, ap) {
			servers = append(servers, ap)
		}
	}
	return servers
}

// reach is the result of queries from a pod to one address.
type reach struct {
	addr       netip.AddrPort
	plain      string // server that answers without redirection; "": none
	redirected string // server that answers a socket in the pods' cgroup; "": none, or not tried
	tried      bool   // redirected was tried
	tcp        bool   // TCP works
	why        string // why plain is ""
}

// server returns the server that answers the pod's own processes, or "".
func (r reach) server() string {
	if r.tried {
		return r.redirected
	}
	return r.plain
}

func (e *podExamination) reach(ctx context.Context, addr netip.AddrPort) reach {
	r := reach{addr: addr}
	var tcp outcome
	var viaCgroup reply
	parallel(
		func() {
			who, o := e.identify(ctx, e.place, addr)
			r.plain, r.why = who, o.why()
		},
		func() { tcp = e.query(ctx, e.place, "tcp", addr, chaos("id.server.")) },
		func() {
			if !e.below {
				viaCgroup, r.tried = e.queryRedirected(ctx, addr)
			}
		},
	)
	r.tcp = tcp.answered()
	if e.below { // the sockets of this process are redirected, so the plain way is unknown
		r.tried, viaCgroup = true, reply{UDP: r.plain, TCP: r.tcp}
	}
	if r.tried {
		r.redirected, r.tcp = viaCgroup.UDP, viaCgroup.TCP
	}
	return r
}

// reachesCluster reports whether the pod reaches any upstream of the cluster's
// zone. It is true if there is none.
func (e *podExamination) reachesCluster(ctx context.Context) bool {
	servers, reached := 0, make(chan bool, len(e.Forwards)*8)
	var work []func()
	for _, f := range e.Forwards {
		if !slices.Contains(f.Zones, e.ClusterDomain) {
			continue
		}
		for _, s := range f.To {
			servers++
			work = append(work, func() {
				_, o := e.identify(ctx, e.place, s.Addr)
				reached <- o.answered()
			})
		}
	}
	go func() { parallel(work...); close(reached) }()
	any := servers == 0
	for r := range reached {
		any = any || r
	}
	return any
}

// checkReachability reports how the pod reaches nodens. clusterDNS means that the
// pod reaches the cluster's DNS directly.
func (e *podExamination) checkReachability(results []reach, clusterDNS bool) {
	any := clusterDNS
	for _, r := range results {
		any = any || r.server() != ""
	}
	if !any && len(results) > 0 {
		what := fmt.Sprintf("neither %s nor the cluster's DNS answers this pod (%s)", results[0].addr, results[0].why)
		if cni, ok := e.findInterception(); ok {
			what += "; " + cni.what
		}
		e.find(e.view, "pod-cut-off", what)
		return
	}
	if !clusterDNS && !e.has("fallback-silent") {
		e.find(e.view, "pod-fallback-silent", "the cluster's DNS answers the node but not this pod")
	}
	for _, r := range results {
		if slices.Contains(e.Addresses, r.addr) {
			e.checkReach(r)
		}
	}
}

// checkReach reports how the pod reaches one local IP.
func (e *podExamination) checkReach(r reach) {
	served := e.served[r.addr]
	switch {
	case served == "":
		// The node gets no answer either, and has a finding for it.
		e.fact(e.view, fmt.Sprintf("%s is answered by %s", r.addr, orNone(r.server())))
		return
	case r.tried && (r.plain != r.redirected || r.redirected == ""):
		e.checkRedirected(r)
	case e.below && isNodens(r.redirected):
		e.fact(e.view, fmt.Sprintf("%s is answered by %s; doctor runs in the pods' cgroup and cannot see by which way", r.addr, r.redirected))
	case e.below:
		e.checkRedirected(r)
	case r.plain == "":
		e.findLost(r)
		return
	case !isNodens(r.plain) && isNodens(served):
		e.find(e.view, "pod-other-server", fmt.Sprintf("%s is answered by %s for this pod, and by %s for the node", r.addr, r.plain, served))
	default:
		e.fact(e.view, fmt.Sprintf("%s is reached by address%s, answered by %s%s", r.addr, inFront(r.addr), r.plain, r.also()))
	}
	if r.server() != "" && !r.tcp {
		e.find(e.view, "pod-tcp-lost", fmt.Sprintf("%s answers this pod over UDP but not over TCP", r.addr))
	}
}

// inFront adds to a fact that nodens answers before a service proxy, if addr may
// be a Service's address: a service proxy never sees untracked packets.
func inFront(addr netip.AddrPort) string {
	if addr.Addr().IsLinkLocalUnicast() {
		return ""
	}
	return ", in front of any service proxy"
}

// also adds to a fact that redirection was examined too.
func (r reach) also() string {
	if !r.tried {
		return ""
	}
	return "; a socket in the pods' cgroup gets the same server"
}

func orNone(server string) string {
	if server == "" {
		return "no server"
	}
	return server
}

// findLost adds a finding for an address that answers only the node.
func (e *podExamination) findLost(r reach) {
	what := fmt.Sprintf("%s answers the node but not this pod (%s)", r.addr, r.why)
	if cni, ok := e.findInterception(); ok {
		e.findAs(e.view, "cni-swallows", "", what+"; "+cni.what, cni.advice)
		return
	}
	e.find(e.view, "pod-lost", what)
}

// checkNameservers checks the nameservers in the pod's resolv.conf.
func (e *podExamination) checkNameservers(conf resolvConf, results []reach) {
	used, lost := false, false
	for _, r := range results {
		if !slices.Contains(conf.servers, r.addr.Addr()) || r.addr.Port() != 53 {
			continue
		}
		if !slices.Contains(e.Addresses, r.addr) {
			e.fact(e.view, fmt.Sprintf("its resolv.conf names %s, answered by %s", r.addr.Addr(), orNone(r.server())))
		}
		used = used || isNodens(r.server())
		lost = lost || slices.Contains(e.Addresses, r.addr) // another finding covers it
		if r.addr.Addr().IsLoopback() && r.server() == "" {
			e.find(e.view, "pod-loopback-resolver", fmt.Sprintf("its resolv.conf names %s, where no server answers", r.addr.Addr()))
		}
	}
	switch {
	case used || lost || len(conf.servers) == 0:
	case slices.Equal(conf.servers, e.conf.servers):
		e.fact(e.view, "its resolv.conf names the node's nameservers, as with dnsPolicy Default")
	default:
		e.find(e.view, "pod-elsewhere", fmt.Sprintf("its resolv.conf names %s, where nodens does not answer", names(conf.servers)))
	}
}
