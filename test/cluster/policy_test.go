package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// peer is an address or a prefix, and a port, that a policy allows.
type peer struct{ address, port string }

// agents install the rules of a policy on a pod's node: the pod may send to the peers and
// to nobody else. They imitate agents of NetworkPolicy.
var agents = []struct {
	name string
	// clusterIP: the rules see the address of the Service, which the agent allows as well.
	clusterIP bool
	install   func(p policed, peers []peer) string
	remove    func(p policed) string
}{
	{"nft", false, nftRules, func(policed) string { return "nft delete table inet agent" }},           // as Calico and kube-router
	{"tc", true, tcRules, func(p policed) string { return "tc qdisc del dev " + p.link + " clsact" }}, // as AWS's agent
}

// policed is a pod to which a policy applies. link is the host's end of its veth.
type policed struct{ name, address, link string }

// nftRules filter in the hooks input and forward, where Services have become endpoints.
func nftRules(p policed, peers []peer) string {
	var allow strings.Builder
	family := "ip"
	if strings.Contains(p.address, ":") {
		family = "ip6"
		allow.WriteString("meta l4proto ipv6-icmp accept; ") // neighbour discovery
	}
	for _, e := range peers {
		fmt.Fprintf(&allow, "%s daddr %s meta l4proto { tcp, udp } th dport %s accept; ", family, e.address, e.port)
	}
	return fmt.Sprintf(`nft -f - <<'END'
table inet agent {
	chain egress { ct state established,related accept; %[3]sdrop; }
	chain input { type filter hook input priority 0; %[1]s saddr %[2]s jump egress; }
	chain forward { type filter hook forward priority 0; %[1]s saddr %[2]s jump egress; }
}
END`, family, p.address, allow.String())
}

// tcRules filter where packets enter the node. Replies and neighbour discovery pass.
func tcRules(p policed, peers []peer) string {
	protocol, icmp := "ip", "icmp"
	if strings.Contains(p.address, ":") {
		protocol, icmp = "ipv6", "icmpv6"
	}
	var b strings.Builder
	add := func(match, action string) {
		fmt.Fprintf(&b, "tc filter add dev %s ingress protocol %s %s action %s\n", p.link, protocol, match, action)
	}
	b.WriteString("set -e\ntc qdisc add dev " + p.link + " clsact\n")
	add("prio 1 flower ip_proto "+icmp, "pass")
	for _, e := range peers {
		for _, l4 := range []string{"udp", "tcp"} {
			add("prio 1 flower ip_proto "+l4+" dst_ip "+e.address+" dst_port "+e.port, "pass")
		}
	}
	add("prio 2 matchall", "drop")
	return b.String()
}

// TestNetworkPolicies: a pod gets answers as far as its policy allows. Policies come after
// the pod's first lookups.
func TestNetworkPolicies(t *testing.T) {
	needCluster(t)
	startClients(t)
	waitForDNS(t)
	const node = "2"
	kubeDNSOnly := []peer{}
	for _, ip := range strings.Fields(kubectl(t, "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[*].status.podIP}")) {
		kubeDNSOnly = append(kubeDNSOnly, peer{ip, "53"})
	}
	nodens := examplePeers(t)
	// In the tier minimal nodens serves the cluster IP, too, see test.sh.
	serves := cmp.Or(os.Getenv("CLUSTER_DNS"), localIP) == kubeDNS
	for _, server := range []string{localIP, kubeDNS} {
		p := startPoliced(t, node, server)
		p.wants(t, true)
		for _, a := range agents {
			service := kubeDNSOnly
			if a.clusterIP {
				service = append([]peer{{kubeDNS, "53"}}, kubeDNSOnly...)
			}
			for _, tt := range []struct {
				policy string
				peers  []peer
				want   bool
			}{
				{"denies all", nil, false},
				{"allows kube-dns", service, server == kubeDNS && (a.clusterIP || !serves)},
				{"allows kube-dns and nodens", append(nodens, kubeDNSOnly...), true},
			} {
				t.Run(strings.Join([]string{a.name, tt.policy, "server " + server}, ", "), func(t *testing.T) {
					defer func() { _, _ = tryOnNode(node, a.remove(p)) }() // also after a failed installation
					onNode(t, node, a.install(p, tt.peers))
					p.wants(t, tt.want)
				})
			}
		}
	}
}

// examplePeers are the peers of the policy that docs/install.md recommends, with the
// addresses of this cluster.
func examplePeers(t *testing.T) (all []peer) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/examples/policies/egress-to-nodens.yaml")
	if err != nil {
		t.Fatal(err)
	}
	world, bits := os.Getenv("WORLD"), "/32"
	here := string(text)
	if strings.Contains(localIP, ":") { // the example's addresses are IPv4
		bits = "/128"
		here = strings.NewReplacer("192.168.0.0/16", `"`+world+`0/124"`, "10.96.0.10/32", `"`+kubeDNS+bits+`"`).Replace(here)
	}
	apply(t, here)
	defer kubectl(t, "delete", "networkpolicy", "egress-to-nodens")
	var policy struct {
		Spec struct {
			Egress []struct {
				To    []struct{ IPBlock struct{ CIDR string } }
				Ports []struct {
					Port     int
					Protocol string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(kubectl(t, "get", "networkpolicy", "egress-to-nodens", "-o", "json")), &policy); err != nil {
		t.Fatal(err)
	}
	for _, rule := range policy.Spec.Egress {
		for _, to := range rule.To {
			for _, port := range rule.Ports {
				if cidr := to.IPBlock.CIDR; port.Protocol == "UDP" && strings.Contains(cidr, ":") == strings.Contains(localIP, ":") {
					all = append(all, peer{cidr, strconv.Itoa(port.Port)})
				}
			}
		}
	}
	return all
}

// startPoliced starts a pod whose stubs query only the server, once, and wait for 5 s.
func startPoliced(t *testing.T, node, server string) policed {
	t.Helper()
	p := policed{name: "policed-" + strings.NewReplacer(".", "-", ":", "-").Replace(server)}
	apply(t, podManifest(p.name, "policed", node, idle, fmt.Sprintf(`  dnsPolicy: None
  dnsConfig: {nameservers: [%q], options: [{name: attempts, value: "1"}]}
`, server)))
	kubectl(t, "wait", "--for=condition=Ready", "pod/"+p.name, "--timeout", timeout.String())
	p.address = kubectl(t, "get", "pod", p.name, "-o", "jsonpath={.status.podIP}")
	if net.ParseIP(p.address) == nil {
		t.Fatalf("%s has the address %q", p.name, p.address)
	}
	index := strings.TrimSpace(kubectl(t, "exec", p.name, "--", "cat", "/sys/class/net/eth0/iflink"))
	p.link = strings.TrimSpace(onNode(t, node, "grep -lx "+index+" /sys/class/net/*/ifindex | cut -d/ -f5"))
	return p
}

// wants checks that all stubs of the pod find a Service or, if want is false, that none does.
// Lookups that should succeed are tried again, because the emulated node is slow.
func (p policed) wants(t *testing.T, want bool) {
	t.Helper()
	const stubs = `for s in musl-lookup glibc-lookup "env NODENS_LAB_LOOKUP=$n go-client"; do
	case $s in env*) $s ;; *) $s $n ;; esac &
done; wait`
	found := func() (int, string) {
		out := kubectl(t, "exec", p.name, "--", "sh", "-c", "n=web.default.svc.cluster.local.\n"+stubs)
		service := kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
		return strings.Count(out, service), out
	}
	if !want {
		n, out := found()
		for i := 0; i < 10 && n > 0 && strings.Contains(*options, "fastpath.mode=on"); i++ { // until the lease ends
			n, out = found()
		}
		if n > 0 {
			t.Errorf("%d of 3 stubs got an answer:\n%s", n, out)
		}
		return
	}
	waitFor(t, "answers for all stubs", func() (bool, string) {
		n, out := found()
		return n == 3, out
	})
}
