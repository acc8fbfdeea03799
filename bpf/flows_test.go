package bpf

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// A socket keeps three flows: it sees the VIP in the replies of three targets.
func TestSocketKeepsThreeFlows(t *testing.T) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "10.0.0.5/32", "10.0.0.6/32")
	serve(t, p.ns, "10.0.0.5:53", "second")
	serve(t, p.ns, "10.0.0.6:53", "third")
	r := open(t, p.config(t))
	check(t, r.Attach())
	check(t, r.Alive())
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	ask := request{Op: "send", Socket: "u", Addr: ap(vip4), Payload: "q"}
	p.must(t, ask)
	check(t, r.Withdraw())
	p.must(t, ask)
	check(t, r.SetFallbacks(ap(vip4), []netip.AddrPort{ap("10.0.0.5:53")}))
	p.must(t, ask)
	answers := map[string]bool{}
	for range 3 {
		got := p.must(t, request{Op: "recv", Socket: "u"})
		if got.Addr != ap(vip4) {
			t.Errorf("%q from %v", got.Payload, got.Addr)
		}
		answers[got.Payload] = true
	}
	if len(answers) != 3 || !answers["target:q"] || !answers["core:q"] || !answers["second:q"] {
		t.Errorf("answers %v", answers)
	}
	// The fourth flow replaces the first.
	check(t, r.SetFallbacks(ap(vip4), []netip.AddrPort{ap("10.0.0.6:53")}))
	p.must(t, ask)
	receive(t, p, vip4)
	p.must(t, request{Op: "send", Socket: "u", Addr: ap(target4), Payload: "q"})
	receive(t, p, target4)
}

// An application that connects to a fallback itself sees the fallback's address, even
// on a socket that was redirected there before.
func TestConnectToFallbackItself(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	for _, addr := range []string{vip4, core4, vip4} {
		p.must(t, request{Op: "connect", Socket: "u", Addr: ap(addr)})
		if got := p.must(t, request{Op: "peer", Socket: "u"}).Addr; got != ap(addr) {
			t.Errorf("getpeername = %v, want %s", got, addr)
		}
		p.must(t, request{Op: "write", Socket: "u", Payload: "q"})
		receive(t, p, addr)
	}
}

// Different sockets use different fallbacks.
func TestFallbacksAreShared(t *testing.T) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "10.0.0.5/32")
	serve(t, p.ns, "10.0.0.5:53", "second")
	r := open(t, p.config(t))
	check(t, r.SetFallbacks(ap(vip4), []netip.AddrPort{ap(core4), ap("10.0.0.5:53")}))
	check(t, r.Attach())
	answers := map[string]int{}
	for range 20 { // cookies are consecutive, so that successive sockets differ
		answers[p.lookup(shapes()[0], answerWait)]++
	}
	if answers["core:q"] == 0 || answers["second:q"] == 0 || len(answers) != 2 {
		t.Errorf("answers %v", answers)
	}
}

func TestPassThrough(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	for _, network := range []string{"udp4", "tcp4"} {
		s := shape{network: network, vip: cluster4, connected: network == "tcp4"}
		p.ask(t, s, "cluster")
		check(t, r.Alive())
		p.ask(t, s, "target")
		check(t, r.Withdraw())
		p.ask(t, s, "cluster")
	}
}

// A multipath TCP socket sees the VIP as its peer, whoever answers. The programs run
// for its subflow.
func TestMultipathPeer(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Services = cfg.Services[:2]
	r := open(t, cfg)
	check(t, r.Engage())
	for _, want := range []string{"target", "core"} {
		made := p.call(t, request{Op: "socket", Socket: want, Network: "mpt4"})
		if made.Errno == unix.EPROTONOSUPPORT || made.Errno == unix.ENOPROTOOPT {
			t.Log("the kernel has no multipath TCP")
			return
		}
		p.askOn(t, want, shape{name: "multipath", network: "tcp4", vip: vip4, connected: true}, want)
		check(t, r.Withdraw())
	}
}

// The last resort replaces the fallbacks of a daemon that has been gone for Lost.
func TestLastResort(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Services = cfg.Services[:2]
	cfg.Services[0].LastResort, cfg.Services[1].LastResort = ap(cluster4), ap(cluster6)
	r := open(t, cfg)
	check(t, r.Engage())
	r.beatAgo(t, longTimeout+2*Lost)
	p.askAll(t, "core") // it hangs
	check(t, r.Withdraw())
	r.beatAgo(t, Lost-time.Minute)
	p.askAll(t, "core")
	r.beatAgo(t, Lost+time.Second)
	p.askAll(t, "cluster")
	if pinned, err := Inspect(cfg.PinDir); err != nil || len(pinned) != 1 || pinned[0].Services[0].LastResort != ap(cluster4) {
		t.Errorf("inspect: %+v, %v", pinned, err)
	}
	for _, s := range cfg.Services {
		check(t, r.SetLastResort(s.VIP, netip.AddrPort{}))
	}
	p.askAll(t, "core")
}

// A proxied service goes to the fallbacks while the daemon hangs, and for LongGone
// after its end. Then it goes to the service proxy.
func TestProxied(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Services[2] = Service{VIP: ap(cluster4), Target: ap(target4), Proxied: true, Fallbacks: []netip.AddrPort{ap(core4)}}
	r := open(t, cfg)
	check(t, r.Attach())
	s := shape{network: "udp4", vip: cluster4}
	check(t, r.Alive())
	p.ask(t, s, "target")
	r.beatAgo(t, longTimeout+2*LongGone)
	check(t, r.KeepFallbacks()) // no heartbeat of a process that is alive
	p.ask(t, s, "core")
	check(t, r.Withdraw())
	for _, tc := range []struct {
		ago  time.Duration
		want string
	}{
		{0, "core"},
		{LongGone / 10, "core"},
		{LongGone + time.Second, "cluster"},
		{-time.Second, "core"}, // the clock of the programs lags
	} {
		r.beatAgo(t, tc.ago)
		t.Run(tc.ago.String(), func(t *testing.T) { p.ask(t, s, tc.want) })
	}
	r.beatAgo(t, 2*LongGone)
	check(t, r.KeepFallbacks()) // it withdrew, and still checks them
	p.ask(t, s, "core")
	r.beatAgo(t, 2*LongGone)
	p.ask(t, shapes()[0], "core") // not proxied
	if n := readHook(t, r, redirectHookHOOK_SENDMSG4, redirectExitReasonEXIT_PASSED_GONE); n != 1 {
		t.Errorf("passed_gone was counted %d times, want 1", n)
	}
}

// A socket that is connected to the cluster IP itself keeps that peer when the daemon
// is alive again: it could not receive from the target.
func TestConnectedStays(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	for _, s := range []shape{
		{network: "udp4", vip: cluster4, connected: true},
		{network: "udp6", vip: cluster4, connected: true, mapped: true},
	} {
		check(t, r.Withdraw())
		p.must(t, request{Op: "socket", Socket: s.network, Network: s.network})
		p.askOn(t, s.network, s, "cluster")
		check(t, r.Alive())
		for _, send := range []request{
			{Op: "write", Socket: s.network, Payload: "q"},
			{Op: "send", Socket: s.network, Addr: s.seen(), Payload: "q"},
		} {
			p.must(t, send)
			if got := p.call(t, request{Op: "recv", Socket: s.network}); got.Payload != "cluster:q" || got.Addr != s.seen() {
				t.Errorf("%s, %s: %q from %v (%v)", s.network, send.Op, got.Payload, got.Addr, got.Errno)
			}
		}
		p.askOn(t, s.network, s, "target") // a new connect is redirected
	}
}

// A pod that opted out is not redirected. Other pods are.
func TestOptOut(t *testing.T) {
	p := newPod(t)
	container := lab.MakeCgroup(t, filepath.Join(p.cgroup, "container"))
	inner := &pod{agent: startAgent(t, p.ns, container)}
	other := &pod{agent: startAgent(t, p.ns, lab.MakeCgroup(t, filepath.Join(p.kubepods, "other")))}
	p.ns.AddAddrs(t, "lo", "169.254.20.10/32")
	serve(t, p.ns, vip4, "itself")
	udp4 := shapes()[0]
	r := open(t, p.config(t))
	check(t, r.Attach())
	check(t, r.Alive())
	inner.ask(t, udp4, "target")
	optOut(t, r, p.cgroup)
	inner.ask(t, udp4, "itself")
	other.ask(t, udp4, "target")

	next := openBeside(t, p.config(t)) // the opt-out stays after the process
	check(t, next.Attach())
	check(t, next.Alive())
	inner.ask(t, udp4, "itself")
	check(t, r.Close())
	check(t, next.Withdraw())
	inner.ask(t, udp4, "itself")
	other.ask(t, udp4, "core")
	ids, err := next.OptedOut()
	check(t, err)
	if len(ids) != 1 {
		t.Fatalf("opted out: %v", ids)
	}
	check(t, next.OptIn(ids[0]))
	check(t, next.OptIn(ids[0]))
	inner.ask(t, udp4, "core")
}

// An exempt network namespace is not redirected while the daemon is alive.
func TestExempt(t *testing.T) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "169.254.20.10/32")
	serve(t, p.ns, vip4, "itself")
	udp4 := shapes()[0]
	r := open(t, p.config(t))
	check(t, r.Attach())
	p.exempt(t, r)
	p.ask(t, udp4, "core")
	check(t, r.Alive())
	p.ask(t, udp4, "itself")
	next := openBeside(t, p.config(t)) // OpenRedirect removes the entry
	check(t, next.Alive())
	p.ask(t, udp4, "target")
}

// A daemon in a pod is never redirected, so that its own queries reach it before it
// is alive.
func TestDaemonIsExempt(t *testing.T) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "169.254.20.10/32")
	serve(t, p.ns, vip4, "itself")
	r := open(t, p.config(t))
	check(t, r.Attach())
	id, err := cgroupID(p.cgroup)
	check(t, err)
	// As OpenRedirect does for a process in that cgroup.
	check(t, r.objs.OptedOut.Put(id, optedOutAsSelf))
	check(t, r.exempts.updateSettings())
	p.ask(t, shapes()[0], "itself")
	check(t, r.Alive())
	p.ask(t, shapes()[0], "itself")
	ids, err := r.OptedOut()
	if err != nil || len(ids) != 0 {
		t.Errorf("the daemon is listed as opted out: %v, %v", ids, err)
	}
	next := openBeside(t, p.config(t)) // a process outside
	check(t, next.Alive())
	p.ask(t, shapes()[0], "target")
}

func TestCurrentCgroupID(t *testing.T) {
	p := newPod(t)
	want, err := cgroupID(p.cgroup)
	check(t, err)
	got := p.must(t, request{Op: "cgroup"})
	if got.Cgroup != want {
		t.Errorf("current cgroup %d, want %d", got.Cgroup, want)
	}
	self, err := currentCgroupID()
	check(t, err)
	if self == want {
		t.Error("the test itself is in the pod's cgroup")
	}
}

// Linux 5.10 has no coarse clock.
func TestPreciseClock(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.objs.Close())
	check(t, loadWith(&r.objs, r.dir, false))
	check(t, r.Attach())
	check(t, r.Alive())
	p.askAll(t, "target")
	r.beatAgo(t, 2*longTimeout)
	p.askAll(t, "core")
}
