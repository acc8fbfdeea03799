package cilium

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	vip        = "169.254.20.10"
	clusterDNS = "10.96.0.10" // the Service kube-dns
	nodeName   = "node-1"
)

// node is a Kubernetes node with Cilium in place of kube-proxy. The API server is outside.
type node struct {
	*lab.Node
	*kube
	programs string
	kubepods string // the cgroup of all pods; Cilium takes the one above for the root
	own      string // the cgroup of nodens's pod, below kubepods
	dir      string // of the agent
	podLogs  string // stands for /var/log/pods
	agent    *lab.Process
	core     *pod // CoreDNS
}

// pod is a pod whose network Cilium has set up.
type pod struct {
	*lab.Netns
	name, cgroup, ip string
}

func newNode(t *testing.T, options ...string) *node {
	t.Helper()
	programs, program := programs(t)
	n := &node{Node: lab.NewNode(t), programs: programs, kubepods: lab.NewKubepods(t), dir: t.TempDir(), podLogs: t.TempDir()}
	n.own = lab.MakeCgroup(t, filepath.Join(n.kubepods, "pod-nodens"))
	n.AddRoute(t, "0.0.0.0/0", lab.OutsideIP)
	n.kube = startKube(t, program, n.Outside)
	crds := filepath.Join(programs, "module", "pkg", "k8s", "apis", "cilium.io", "client", "crds")
	n.ctl(t, "apply", "-f", filepath.Join(crds, "v2"), "-f", filepath.Join(crds, "v2alpha1"))
	n.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: %s
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, nodeName, clusterDNS))
	n.ctl(t, "patch", "node", nodeName, "--subresource=status", "-p",
		`{"status":{"addresses":[{"type":"InternalIP","address":"`+lab.NodeIP+`"},{"type":"Hostname","address":"`+nodeName+`"}]}}`)
	n.startAgent(t, options...)
	n.startCoreDNS(t)
	return n
}

// startAgent starts Cilium with native routing, BPF masquerading and BPF host routing, and
// waits until it is ready.
func (n *node) startAgent(t *testing.T, options ...string) {
	t.Helper()
	args := append([]string{"./agent.sh", n.dir, n.programs,
		"--k8s-kubeconfig-path=" + n.path("kubeconfig"), "--ipam=kubernetes", "--identity-allocation-mode=crd", "--state-dir=" + n.dir,
		"--kube-proxy-replacement=true", "--devices=eth0", "--enable-ipv6=false",
		"--routing-mode=native", "--ipv4-native-routing-cidr=10.244.0.0/16", "--enable-ipv4-masquerade", "--enable-bpf-masquerade",
		"--enable-l7-proxy", "--external-envoy-proxy", "--dnsproxy-enable-transparent-mode",
		"--enable-health-checking=false", "--enable-endpoint-health-checking=false", "--enable-hubble=false",
	}, options...)
	n.agent = lab.Command{
		Netns: n.Netns, Cgroup: filepath.Dir(n.kubepods), Args: args,
		Env: []string{"K8S_NODE_NAME=" + nodeName, "CILIUM_K8S_NAMESPACE=kube-system"},
	}.Start(t)
	t.Cleanup(func() { n.stopAgent(t) })
	waitFor(t, "the Cilium agent", func() bool {
		select {
		case <-n.agent.Done():
			t.Fatalf("the Cilium agent ended:\n%s", n.agent.Err.Text())
		default:
		}
		_, _, status := n.cilium(t, "status", "--brief")
		return status == 0
	})
}

func (n *node) stopAgent(t *testing.T) {
	select {
	case <-n.agent.Done():
	default:
		n.agent.Signal(t, syscall.SIGTERM)
		<-n.agent.Done()
	}
	if t.Failed() {
		text := n.agent.Err.Text() + n.agent.Out.Text()
		t.Logf("log of Cilium:\n%s", text[max(0, len(text)-20000):])
	}
}

// cilium runs cilium-dbg.
func (n *node) cilium(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return lab.Command{
		Netns: n.Netns, Args: append([]string{filepath.Join(n.programs, "cilium-dbg")}, args...), Env: []string{"CILIUM_SOCK=" + n.dir + "/cilium.sock"},
	}.Output(t)
}

// addPod makes a Pod and calls the CNI plugin, as a kubelet and its runtime do, and waits
// until the pod's policy is in force.
func (n *node) addPod(t *testing.T, name, labels string) *pod {
	t.Helper()
	n.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default, labels: {%s}}
spec: {nodeName: %s, containers: [{name: main, image: none}]}
`, name, labels, nodeName))
	uid := n.ctl(t, "get", "pod", name, "-o", "jsonpath={.metadata.uid}")
	if err := os.Mkdir(filepath.Join(n.podLogs, "default_"+name+"_"+uid), 0o755); err != nil {
		t.Fatal(err)
	}
	p := &pod{Netns: lab.NewNetns(t, name), name: name, cgroup: lab.MakeCgroup(t, filepath.Join(n.kubepods, "pod"+uid))}
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal(n.cni(t, p, "ADD", uid), &result); err != nil {
		t.Fatal(err)
	}
	p.ip, _, _ = strings.Cut(result.IPs[0].Address, "/")
	t.Cleanup(func() { n.deletePod(t, p, uid) })
	waitFor(t, "the endpoint of "+name, func() bool {
		state, _, _ := n.cilium(t, "endpoint", "get", "-o", "jsonpath={[0].status.state}", "ipv4:"+p.ip)
		return strings.TrimSpace(state) == "ready"
	})
	// nodens finds the networks of pods by their processes.
	lab.Command{Netns: p.Netns, Cgroup: p.cgroup, Binds: lab.Etc(t, "nameserver "+clusterDNS+"\n"), Args: []string{"sleep", "infinity"}}.Start(t)
	return p
}

// deletePod does what a kubelet does after the processes of a pod have ended.
func (n *node) deletePod(t *testing.T, p *pod, uid string) {
	t.Helper()
	n.cni(t, p, "DEL", uid)
	n.ctl(t, "delete", "pod", p.name, "--force", "--grace-period=0")
	if err := os.Remove(filepath.Join(n.podLogs, "default_"+p.name+"_"+uid)); err != nil {
		t.Error(err)
	}
}

// cni calls the plugin of Cilium.
func (n *node) cni(t *testing.T, p *pod, command, uid string) (out []byte) {
	t.Helper()
	// The plugin keeps a queue in /run, which must not be the host's.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs none /run && exec "$0"`,
		filepath.Join(n.programs, "cilium-cni"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+uid, "CNI_IFNAME=eth0", "CNI_PATH="+n.programs,
		"CILIUM_SOCK="+n.dir+"/cilium.sock", "CNI_NETNS="+p.Path(),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+p.name+";K8S_POD_UID="+uid)
	cmd.Stdin = bytes.NewReader([]byte(`{"cniVersion": "0.3.1", "name": "cilium", "type": "cilium-cni", "log-file": "` + n.dir + `/cni.log"}`))
	n.Inside(t, func() (err error) {
		if out, err = cmd.Output(); err != nil {
			t.Logf("cilium-cni %s: %s", command, out)
		}
		return err
	})
	return out
}

// startCoreDNS runs CoreDNS in a pod behind the Service kube-dns. Every name of the
// zones example and forbidden exists.
func (n *node) startCoreDNS(t *testing.T) {
	t.Helper()
	n.core = n.addPod(t, "coredns", "k8s-app: kube-dns")
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), `. {
    template IN A example {
        answer "{{ .Name }} 30 IN A 192.0.2.1"
    }
    template IN AAAA example {
        answer "{{ .Name }} 30 IN AAAA 2001:db8::1"
    }
    template IN A forbidden {
        answer "{{ .Name }} 30 IN A 192.0.2.1"
    }
    template IN ANY . {
        rcode NXDOMAIN
    }
    log . "{remote} {type} {name}"
}
`)
	p := lab.Command{Netns: n.core.Netns, Cgroup: n.core.cgroup, Args: []string{lab.CoreDNS(t), "-conf", conf}}.Start(t)
	p.Out.WaitFor(t, 0, `CoreDNS-`)
	n.apply(t, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-1, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [%s], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
`, n.core.ip))
}
