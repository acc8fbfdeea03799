package redirect

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Addresses of a node without IPv4, besides those of newNode6.
const (
	podGateway6 = "fd10:244:1::1"
	clusterDNS6 = "fd10:96::b" // the Service nodens-upstream
)

// corefile6 is the chart's.
const corefile6 = `cluster.local:53 {
    errors
    cache
    reload
    loop
    bind __PILLAR__LOCAL__DNS__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus :9253
    health :8080
    ready :8181
    redirect on {
        target :20053
        fallback ` + endpoint6 + `
    }
}
.:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__
    forward . __PILLAR__UPSTREAM__SERVERS__
}
`

// node6Only is a node whose only IPv4 address is 127.0.0.1. The cluster's DNS, its
// endpoint and the server of the node's resolv.conf are outside. Each answers AAAA
// queries with its own address.
type node6Only struct {
	*node
	conf string   // the Corefile that nodens writes
	env  []string // as the kubelet sets it
}

func newNode6Only(t *testing.T) *node6Only {
	t.Helper()
	lab.NeedBPF(t)
	lab.NeedTools(t, "dig", "unshare")
	n := &node{
		CNINode: &lab.CNINode{Pod: lab.NewNetns(t, "pod"), Node: lab.NewNetns(t, "node"), Outside: lab.NewNetns(t, "outside"), Kubepods: lab.NewKubepods(t)},
		pinDir:  filepath.Join(lab.BPFFS, t.Name()),
	}
	n.PodCgroup = lab.MakeCgroup(t, filepath.Join(n.Kubepods, "pod0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01"))
	n.Node.Join(t, "veth0", []string{podGateway6 + "/64"}, n.Pod, "eth0", []string{"fd10:244:1::5/64"})
	n.Node.Join(t, "eth0", []string{node6 + "/64"}, n.Outside, "eth0", []string{outside6 + "/64", endpoint6 + "/64"})
	n.Node.Sysctl(t, "ipv6/conf/all/forwarding", "1")
	n.Outside.AddAddrs(t, "lo", clusterDNS6+"/128")
	n.Node.AddRoute(t, "::/0", outside6)
	n.Pod.AddRoute(t, "::/0", podGateway6)
	n.Outside.AddRoute(t, "fd10:244:1::/64", node6)
	for _, ip := range []string{clusterDNS6, endpoint6, outside6} {
		lab.StartUpstream(t, n.Outside, "["+ip+"]:53", func(q *dns.Msg) *dns.Msg {
			if name := q.Question[0].Name; name != "." && q.Question[0].Qtype == dns.TypeAAAA {
				return lab.Reply(q, name+" 30 IN AAAA "+ip)
			}
			return lab.Denial(q, dns.RcodeSuccess, ".")
		})
	}
	t.Cleanup(func() { n.teardown(t) })
	return &node6Only{
		node: n, conf: filepath.Join(t.TempDir(), "Corefile"),
		env: []string{"NODE_IP=" + node6, "KUBE_DNS_SERVICE_HOST=fd10:96::a", "NODENS_UPSTREAM_SERVICE_HOST=" + clusterDNS6},
	}
}

// resolvConf binds a resolv.conf with one server.
func resolvConf(t *testing.T, server string) map[string]string {
	t.Helper()
	return map[string]string{"/etc/resolv.conf": lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), "nameserver "+server+"\n")}
}

// flags are those of the chart, besides -conf.
func (n *node6Only) flags(t *testing.T) []string {
	t.Helper()
	base := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile.base"), corefile6)
	return []string{
		"-basecorefile=" + base, "-upstreamsvc=nodens-upstream", "-localip=" + vip6, "-health-port=8080", "-supervise",
		"-metrics-listen-address=0", "-kubepods=" + n.Kubepods, "-redirect-pin-dir=" + n.pinDir,
	}
}

// waitFor waits until a command succeeds with an output. On a busy machine, nodens is
// late now and then, and the fallback answers.
func (n *node6Only) waitFor(t *testing.T, c lab.Command, want string) {
	t.Helper()
	for deadline := time.Now().Add(lab.QueryTimeout); ; {
		out, errs, status := c.Output(t)
		if status == 0 && strings.Contains(out, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v: status %d, want %q\n%s%s", c.Args, status, want, out, errs)
		}
	}
}

// checkAnswers queries from the pod for a name of the cluster and for another one.
func (n *node6Only) checkAnswers(t *testing.T) {
	t.Helper()
	for _, network := range []string{"+notcp", "+tcp"} {
		for name, want := range map[string]string{"web.default.svc.cluster.local": clusterDNS6, "www.example.org": outside6} {
			args := []string{"dig", "+short", "+tries=1", "+time=2", "@" + vip6, name, "AAAA", network}
			n.waitFor(t, lab.Command{Netns: n.Pod, Cgroup: n.PodCgroup, Args: args}, want+"\n")
		}
	}
}

// TestIPv6Only runs the chart's Corefile and flags on a node without IPv4: answers,
// admin endpoints, status and doctor, and answers by the worker after the first one.
func TestIPv6Only(t *testing.T) {
	n := newNode6Only(t)
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: release.Path(t), Netns: n.Node, Conf: n.conf, Binds: resolvConf(t, outside6), Env: n.env, Args: n.flags(t)})
	d.Err.WaitFor(t, 0, `sockets are redirected" service=.?\[`+vip6)
	n.checkAnswers(t)
	for port, path := range map[string]string{"9253": "/metrics", "8080": "/health", "8181": "/ready"} {
		if status, body := n.Node.Get(t, "["+node6+"]:"+port, path); status != 200 {
			t.Errorf("%s at port %s: status %d\n%s", path, port, status, body)
		}
	}
	pod := lab.Command{Netns: n.Pod, Cgroup: n.PodCgroup, Args: []string{"sh", "-c", "echo pid $$; exec sleep 1000"}, Binds: resolvConf(t, vip6)}.Start(t)
	pid := strings.TrimPrefix(pod.Out.WaitFor(t, 0, `^pid `), "pid ")
	for command, want := range map[string]string{"status": "redirect\tattached, alive", "doctor -pod " + pid: "no problem found"} {
		n.waitFor(t, lab.Command{Netns: n.Node, Args: append([]string{release.Path(t)}, strings.Fields(command)...)}, want)
	}
	mark := d.Err.Mark()
	kill := fmt.Sprintf("kill -9 $(cat /proc/%d/task/*/children)", d.PID())
	if _, errs, status := (lab.Command{Netns: n.Node, Args: []string{"sh", "-c", kill}}).Output(t); status != 0 {
		t.Fatalf("%s: %s", kill, errs)
	}
	d.Err.WaitFor(t, mark, `sockets are redirected" service=.?\[`+vip6)
	n.checkAnswers(t)
	if strings.Contains(d.Err.Text(), "do not reach nodens by this address") {
		t.Errorf("nodens takes its own address for a cluster IP:\n%s", d.Err.Text())
	}
}
