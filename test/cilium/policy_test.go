package cilium

import (
	"fmt"
	"regexp"
	"testing"
)

// policy is a CiliumNetworkPolicy for the pods of an app, with rules of egress.
func policy(app, egress string) string {
	return fmt.Sprintf(`
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: %[1]s, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: %[1]s}}
  egress:
%[2]s
`, app, egress)
}

// Rules of egress. Those for nodens are those of docs/cilium.md, with a second port for
// the second address.
const (
	denyAll      = "  - {}\n"
	allowKubeDNS = `
  - toEndpoints: [{matchLabels: {k8s-app: kube-dns}}]
    toPorts: [{ports: [{port: "53", protocol: ANY}]}]`
	allowNodens = `
  - toEntities: [host]
    toPorts: [{ports: [{port: "20053", endPort: 20054, protocol: ANY}]}]`
	// With these, Cilium's DNS proxy sees the lookups and refuses other names.
	inspectKubeDNS = `
  - toEndpoints: [{matchLabels: {k8s-app: kube-dns}}]
    toPorts: [{ports: [{port: "53", protocol: ANY}], rules: {dns: [{matchPattern: "*.example"}]}}]
  - toFQDNs: [{matchPattern: "*.example"}]`
	inspectNodens = `
  - toEntities: [host]
    toPorts:
    - ports: [{port: "20053", protocol: ANY}, {port: "20054", protocol: ANY}]
      rules: {dns: [{matchPattern: "*.example"}]}`
)

// restrict adds a pod with a policy after it has asked nodens.
func (n *node) restrict(t *testing.T, name, egress string) *pod {
	t.Helper()
	p := n.addPod(t, name, "app: "+name)
	p.expect(t, "before the policy", vip, "who.example", byNodens)
	t.Cleanup(n.apply(t, policy(name, egress)))
	return p
}

// testPolicies: redirected lookups are traffic to the node, and policies hold.
func testPolicies(t *testing.T, n *node, _ *pod) {
	d := n.start(t, n.redirecting()...)
	for _, p := range []*pod{n.restrict(t, "denied", denyAll), n.restrict(t, "kubedns-only", allowKubeDNS)} {
		p.expect(t, "with the policy", vip, "who.example", lost)
		for _, server := range []string{vip, clusterDNS} {
			p.never(t, "with the policy", server, "who.example")
		}
	}
	both := n.restrict(t, "both", allowKubeDNS+allowNodens)
	for _, server := range []string{vip, clusterDNS} {
		both.expect(t, "with the policy", server, "who.example", byNodens)
	}
	d.stop(t)
	both.expect(t, "without nodens", clusterDNS, "who.example", byCoreDNS)
}

// testDNSProxy: Cilium's DNS proxy, which toFQDNs needs, sees the lookups of a pod that
// opts out, and those of a redirected pod whose policy inspects the target.
func testDNSProxy(t *testing.T, n *node, lines ...string) {
	d := n.start(t, append(n.redirecting("opt_out default/opted-out"), lines...)...)
	out := n.addPod(t, "opted-out", "app: opted-out")
	t.Cleanup(n.apply(t, policy("opted-out", inspectKubeDNS)))
	in := n.restrict(t, "inspected", inspectKubeDNS+inspectNodens)
	out.expect(t, "the proxy refuses", clusterDNS, "a.forbidden", lost)
	in.expect(t, "the proxy refuses", vip, "a.forbidden", lost)
	out.expect(t, "opted out", clusterDNS, "who.example", byCoreDNS)
	in.expect(t, "inspected", vip, "who.example", byNodens)
	in.expect(t, "inspected", clusterDNS, "in.example", byCoreDNS)
	cache, _, _ := n.cilium(t, "fqdn", "cache", "list")
	for _, want := range []string{`who\.example\..* 192\.0\.2\.1 `, `who\.example\..* 192\.0\.2\.53 `, `in\.example\..* 192\.0\.2\.1 `} {
		if !regexp.MustCompile(want).MatchString(cache) {
			t.Errorf("the DNS proxy has not seen %s:\n%s", want, cache)
		}
	}
	d.stop(t)
}
