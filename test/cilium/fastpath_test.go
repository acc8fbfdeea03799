package cilium

import (
	"strings"
	"testing"
)

// fast are the lines for redirected pods that the kernel answers.
func (n *node) fast() []string { return append(n.redirecting(), "fastpath on {\nlease 5s\n}") }

// testFastpath: the kernel answers pods whose links and policies are Cilium's.
func testFastpath(t *testing.T, n *node, p *pod) {
	d := n.start(t, n.fast()...)
	for _, server := range []string{vip, clusterDNS} {
		if !p.warm(t, n, server, "warm.example") {
			t.Errorf("the kernel does not answer at %s", server)
		}
	}
	if out := n.run(t, "status"); !strings.Contains(out, ": the kernel answers 1 addresses") {
		t.Errorf("nodens status:\n%s", out)
	}
	d.stop(t)
}

// testFastpathPolicies: a pod whose lookups a policy drops gets no answer, neither from
// the start nor when the policy comes while the pod has a lease.
func testFastpathPolicies(t *testing.T, n *node, p *pod) {
	d := n.start(t, n.fast()...)
	if !p.warm(t, n, vip, "warm.example") {
		t.Error("the kernel does not answer")
	}
	early := n.addPod(t, "denied-early", "app: denied-early")
	t.Cleanup(n.apply(t, policy("denied-early", denyAll)))
	early.expect(t, "with the policy", n.core.ip, "who.example", lost)
	early.never(t, "from the start", vip, "warm.example")
	late := n.addPod(t, "denied-late", "app: denied-late")
	if !late.warm(t, n, vip, "warm.example") {
		t.Error("the kernel does not answer the second pod")
	}
	t.Cleanup(n.apply(t, policy("denied-late", denyAll)))
	late.expect(t, "with the policy", vip, "warm.example", lost)
	late.never(t, "with the policy", vip, "warm.example")
	d.stop(t)
}

// testFastpathDNSProxy: the proxy sees each lookup, also of a pod that had a lease before
// its policy came.
func testFastpathDNSProxy(t *testing.T, n *node, _ *pod) {
	testDNSProxy(t, n, "fastpath on")
	d := n.start(t, n.fast()...)
	p := n.addPod(t, "inspected-late", "app: inspected-late")
	if !p.warm(t, n, vip, "a.forbidden") {
		t.Error("the kernel does not answer")
	}
	t.Cleanup(n.apply(t, policy("inspected-late", inspectKubeDNS+inspectNodens)))
	p.expect(t, "the proxy refuses", vip, "a.forbidden", lost)
	p.never(t, "the proxy refuses", vip, "a.forbidden")
	before := n.kernelAnswers(t)
	for range 20 {
		p.ask(t, vip, "warm.example")
	}
	if got := n.kernelAnswers(t) - before; got > 0 {
		t.Errorf("the kernel gave %v answers that the proxy has not seen", got)
	}
	d.stop(t)
}
