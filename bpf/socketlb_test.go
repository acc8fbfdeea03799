package bpf

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachSocketLB attaches a socket load balancer to a cgroup. It sends the cluster IP
// to CoreDNS. The server at the cluster IP itself answers "cluster", which a client
// never sees while the load balancer works.
func attachSocketLB(t *testing.T, dir string) {
	t.Helper()
	var objs labObjects
	check(t, loadLabObjects(&objs, nil))
	t.Cleanup(func() { _ = objs.Close() })
	check(t, objs.Backends.Put(toEndpoint(ap(cluster4)), toEndpoint(ap(core4))))
	check(t, objs.Backends.Put(toEndpoint(ap(cluster6)), toEndpoint(ap(core6))))
	f, err := os.Open(dir)
	check(t, err)
	defer f.Close()
	for attach, prog := range map[ebpf.AttachType]*ebpf.Program{
		ebpf.AttachCGroupInet4Connect:     objs.LbConnect4,
		ebpf.AttachCGroupInet6Connect:     objs.LbConnect6,
		ebpf.AttachCGroupUDP4Sendmsg:      objs.LbSendmsg4,
		ebpf.AttachCGroupUDP6Sendmsg:      objs.LbSendmsg6,
		ebpf.AttachCGroupUDP4Recvmsg:      objs.LbRecvmsg4,
		ebpf.AttachCGroupUDP6Recvmsg:      objs.LbRecvmsg6,
		ebpf.AttachCgroupInet4GetPeername: objs.LbGetpeername4,
		ebpf.AttachCgroupInet6GetPeername: objs.LbGetpeername6,
	} {
		lnk, err := link.AttachRawLink(link.RawLinkOptions{Target: int(f.Fd()), Program: prog, Attach: attach})
		check(t, err)
		t.Cleanup(func() { _ = lnk.Close() })
	}
}

// clusterShapes are the shapes with the cluster IP as the VIP.
func clusterShapes() []shape {
	all := shapes()
	for i := range all {
		all[i].vip = map[string]string{vip4: cluster4, vip6: cluster6}[all[i].vip]
	}
	return all
}

// With a socket load balancer on the parent cgroup, such as Cilium's on the root, a
// client sees the address that it queried: the VIP or a redirected cluster IP. This
// holds while the daemon runs and after it has ended.
func TestBehindSocketLB(t *testing.T) {
	p := newPod(t)
	if has, err := HasSocketLB(p.kubepods); has || err != nil {
		t.Errorf("a socket load balancer without one: %t, %v", has, err)
	}
	attachSocketLB(t, filepath.Dir(p.kubepods))
	if has, err := HasSocketLB(p.kubepods); !has || err != nil {
		t.Errorf("a socket load balancer: %t, %v", has, err)
	}
	p.askEach(t, clusterShapes(), "core") // check that the load balancer works
	r := open(t, p.config(t))
	check(t, r.Attach())
	for range 2 {
		p.askEach(t, clusterShapes(), "core")
		p.askAll(t, "core")
		check(t, r.Alive())
		p.askEach(t, clusterShapes(), "target")
		p.askAll(t, "target")
		check(t, r.Withdraw())
	}
}

func (p *pod) askEach(t *testing.T, shapes []shape, want string) {
	for _, s := range shapes {
		t.Run(s.network+" "+s.name, func(t *testing.T) { p.ask(t, s, want) })
	}
}

// Our programs are attached to the cgroup of the load balancer, before it.
func TestBesideSocketLB(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	attachSocketLB(t, p.kubepods)
	p.askAll(t, "core")
	p.askEach(t, clusterShapes(), "core")
	check(t, r.Alive())
	p.askAll(t, "target")
	p.askEach(t, clusterShapes(), "target")
}

// A control: with the cluster IP as a fallback, a client sees the cluster IP. This is
// why fallbacks are endpoints.
func TestClusterIPIsNoFallback(t *testing.T) {
	p := newPod(t)
	attachSocketLB(t, filepath.Dir(p.kubepods))
	cfg := p.config(t)
	cfg.Services = []Service{{VIP: ap(vip4), Target: ap(target4), Fallbacks: []netip.AddrPort{ap(cluster4)}}}
	r := open(t, cfg)
	check(t, r.Attach())
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	p.must(t, request{Op: "send", Socket: "u", Addr: ap(vip4), Payload: "q"})
	if got := p.must(t, request{Op: "recv", Socket: "u"}); got.Payload != "core:q" || got.Addr != ap(cluster4) {
		t.Errorf("%q from %v, want an answer of core that seems to come from the cluster IP", got.Payload, got.Addr)
	}
	check(t, r.SetFallbacks(ap(vip4), []netip.AddrPort{ap(core4)}))
	p.askAll4(t, "core")
}

func (p *pod) askAll4(t *testing.T, want string) {
	for _, s := range shapes() {
		if s.vip == vip4 {
			p.ask(t, s, want)
		}
	}
}

// A control: attached after the load balancer, our programs cannot redirect the
// cluster IP.
func TestAfterSocketLB(t *testing.T) {
	p := newPod(t)
	attachSocketLB(t, p.kubepods)
	r := open(t, p.config(t))
	check(t, r.Attach())
	check(t, r.Alive())
	p.askEach(t, clusterShapes(), "core")
	p.askAll(t, "target") // the load balancer does not know the VIP
	check(t, r.Withdraw())
	p.askAll(t, "core")
}

// A control: without the reverse hooks a client sees the target.
func TestWithoutReverseHooks(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	check(t, r.Alive())
	check(t, removeLinks(r.dir, func(h hook) bool { return !h.forward }))
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	p.must(t, request{Op: "connect", Socket: "u", Addr: ap(vip4)})
	if got := p.must(t, request{Op: "peer", Socket: "u"}).Addr; got != ap(target4) {
		t.Errorf("getpeername = %v, want %s", got, target4)
	}
	p.must(t, request{Op: "write", Socket: "u", Payload: "q"})
	receive(t, p, target4)
	check(t, r.Attach()) // attaches the reverse hooks again
	p.askAll(t, "target")
}
