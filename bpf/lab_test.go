package bpf

import (
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/vishvananda/netlink"
)

// How the CNI routes packets that leave a pod: enum mode of lab.bpf.c.
const (
	modeLegacy uint32 = iota
	modeFIB
	modeSkipFIB
	modeFIBOrStack
)

const (
	labTarget = "192.168.50.2:10053"
	labCore   = "10.0.2.7:53"
	notFwded  = 4 // BPF_FIB_LKUP_RET_NOT_FWDED
)

// labNode is a node, a pod behind a veth with the CNI's program, and the network
// outside.
//
//	pod 10.0.1.5 ── lxc0 │ node │ up0 192.168.50.2 ── 192.168.50.1 │ ext
//
// The node has the VIP and the pods' gateway 10.0.1.1; ext has the cluster IP and
// CoreDNS.
type labNode struct {
	*pod
	node, ext *lab.Netns
	objs      labObjects
	plain     *agent // in the pod's namespace, but not below kubepods
	daemon    *daemon
	cfg       daemonConfig
}

func newLab(t *testing.T, mode uint32) *labNode {
	t.Helper()
	lab.NeedBPF(t)
	l := &labNode{
		pod:  &pod{ns: lab.NewNetns(t, "pod"), kubepods: lab.NewKubepods(t)},
		node: lab.NewNetns(t, "node"),
		ext:  lab.NewNetns(t, "ext"),
	}
	l.cgroup = lab.MakeCgroup(t, filepath.Join(l.kubepods, "pod"))
	l.wire(t)
	l.attachCNI(t, mode)
	serve(t, l.ext, cluster4, "cluster")
	serve(t, l.ext, labCore, "core")
	l.agent = startAgent(t, l.ns, l.cgroup)
	l.plain = startAgent(t, l.ns, filepath.Dir(l.kubepods))
	pinDir := filepath.Join(lab.BPFFS, strings.ReplaceAll(t.Name(), "/", "_"))
	t.Cleanup(func() {
		if err := Teardown(pinDir); err != nil {
			t.Error(err)
		}
	})
	l.cfg = daemonConfig{
		Redirect: RedirectConfig{Cgroup: l.kubepods, PinDir: pinDir, Services: []Service{
			{VIP: ap(vip4), Target: ap(labTarget), Fallbacks: []netip.AddrPort{ap(labCore)}},
		}},
		Timeout: patience, Name: "daemon", Serve: []netip.AddrPort{ap(labTarget), ap(vip4)},
	}
	l.daemon = startDaemon(t, l.node, l.node, l.cfg)
	return l
}

func (l *labNode) wire(t *testing.T) {
	t.Helper()
	l.node.Join(t, "lxc0", nil, l.ns, "eth0", nil)
	l.node.Join(t, "up0", nil, l.ext, "eth0", nil)
	l.node.Join(t, "cilium_host", nil, l.node, "cilium_net", nil)
	l.node.Join(t, "nodelocaldns", nil, l.node, "nodelocalpeer", nil) // a veth in place of a dummy link
	l.node.AddAddrs(t, "cilium_host", "10.0.1.1/32")
	l.node.AddAddrs(t, "up0", "192.168.50.2/24")
	l.node.AddAddrs(t, "nodelocaldns", "169.254.20.10/32")
	l.node.AddLinkRoute(t, "10.0.1.5/32", "lxc0")
	l.node.AddRoute(t, "0.0.0.0/0", "192.168.50.1")
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/lxc0/rp_filter": "0",
		"ipv4/conf/up0/rp_filter": "0", "ipv4/conf/lxc0/proxy_arp": "1",
	} {
		l.node.Sysctl(t, name, value)
	}
	l.ns.AddAddrs(t, "eth0", "10.0.1.5/32")
	l.ns.AddLinkRoute(t, "10.0.1.1/32", "eth0")
	l.ns.AddRoute(t, "0.0.0.0/0", "10.0.1.1")
	l.ext.AddAddrs(t, "eth0", "192.168.50.1/24")
	l.ext.AddAddrs(t, "lo", "10.96.0.10/32", "10.0.2.7/32")
	l.ext.AddRoute(t, "10.0.1.0/24", "192.168.50.2")
}

func (l *labNode) attachCNI(t *testing.T, mode uint32) {
	t.Helper()
	spec, err := loadLab()
	check(t, err)
	var up netlink.Link
	l.node.Inside(t, func() (err error) {
		up, err = netlink.LinkByName("up0")
		return err
	})
	word := func(addr string) uint32 { return toEndpoint(ap(addr + ":0")).Addr[3] }
	for name, value := range map[string]any{
		"mode": mode, "uplink": uint32(up.Attrs().Index), "vip": word("169.254.20.10"),
		"host_addrs": [2]uint32{word("192.168.50.2"), word("10.0.1.1")},
	} {
		check(t, spec.Variables[name].Set(value))
	}
	check(t, spec.LoadAndAssign(&l.objs, nil))
	t.Cleanup(func() { _ = l.objs.Close() })
	l.node.AttachIngress(t, "lxc0", l.objs.FromPod)
	l.ext.AttachIngress(t, "eth0", l.objs.CountVip)
}

func (l *labNode) counted(t *testing.T, m *ebpf.Map, key uint32) (n uint64) {
	t.Helper()
	check(t, m.Lookup(key, &n))
	return n
}

func labShapes(vip string) []shape {
	return []shape{
		{name: "UDP unconnected", network: "udp4", vip: vip},
		{name: "UDP connected", network: "udp4", vip: vip, connected: true},
		{name: "UDP mapped", network: "udp6", vip: vip, mapped: true},
		{name: "TCP", network: "tcp4", vip: vip, connected: true},
		{name: "TCP mapped", network: "tcp6", vip: vip, connected: true, mapped: true},
	}
}

// lossOf is the outcome of a lookup whose packets are lost.
const lossOf = "lost"

// outcome returns the name of the server that answers, or lossOf after wait.
func outcome(a *agent, s shape, wait time.Duration) string {
	got := a.lookup(s, wait)
	switch {
	case strings.Contains(got, syscall.EAGAIN.Error()), strings.Contains(got, syscall.EINPROGRESS.Error()):
		return lossOf
	}
	return strings.TrimSuffix(got, ":q")
}

// TestRoutingModes checks for each routing mode which server answers a pod: at the
// VIP without redirection, at the node, at the cluster IP, and at the VIP with
// redirection while the daemon runs and after it is killed.
func TestRoutingModes(t *testing.T) {
	for _, tc := range []struct {
		name          string
		mode          uint32
		plain         string // the answer at the VIP without redirection
		drops, leaves bool
	}{
		{"M0 legacy", modeLegacy, "daemon", false, false},
		{"M1 FIB", modeFIB, lossOf, true, false},
		{"M2 skip FIB", modeSkipFIB, lossOf, false, true},
		{"M3 FIB or stack", modeFIBOrStack, "daemon", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, tc.mode)
			l.expect(t, "plain VIP", l.plain, labShapes(vip4)[:1], tc.plain)
			l.expect(t, "plain VIP", l.plain, labShapes(vip4)[3:4], tc.plain)
			if dropped := l.counted(t, l.objs.Dropped, notFwded) > 0; dropped != tc.drops {
				t.Errorf("dropped with code %d: %t, want %t", notFwded, dropped, tc.drops)
			}
			if left := l.counted(t, l.objs.Leaked, 0) > 0; left != tc.leaves {
				t.Errorf("queries left by the uplink: %t, want %t", left, tc.leaves)
			}
			l.expect(t, "node", l.plain, labShapes(labTarget), "daemon")
			l.expect(t, "ClusterIP", l.plain, labShapes(cluster4), "cluster")
			leaked := l.counted(t, l.objs.Leaked, 0)
			l.expect(t, "redirected", l.agent, labShapes(vip4), "daemon")
			l.askAs(t, labShapes(vip4), "daemon")
			l.daemon.kill(t)
			l.expect(t, "redirected, daemon killed", l.agent, labShapes(vip4), "core")
			l.askAs(t, labShapes(vip4), "core")
			if n := l.counted(t, l.objs.Leaked, 0); n != leaked {
				t.Errorf("%d packets to the VIP left by the uplink in spite of redirection", n-leaked)
			}
		})
	}
}

func (l *labNode) expect(t *testing.T, what string, a *agent, shapes []shape, want string) {
	t.Helper()
	wait := answerWait
	if want == lossOf {
		wait = lossWait
	}
	for _, s := range shapes {
		if got := outcome(a, s, wait); got != want {
			t.Errorf("%s, %s: %s, want %s", what, s.name, got, want)
		}
	}
}

// askAs also checks getpeername.
func (l *labNode) askAs(t *testing.T, shapes []shape, want string) {
	for _, s := range shapes {
		t.Run(s.name+" "+want, func(t *testing.T) { l.ask(t, s, want) })
	}
}
