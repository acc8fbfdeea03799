package bpf

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// exitCase makes a hook run once and end with one reason.
type exitCase struct {
	reason redirectExitReason
	hook   redirectHook
	setUp  func(t *testing.T, p *pod, r *Redirect) // r is alive
	do     func(t *testing.T, p *pod)
}

const (
	unused4 = "10.0.0.9:53"
	local4  = "127.0.0.1:5353"
)

// sendTo sends on the socket "u" and ignores errors.
func sendTo(addr string) func(*testing.T, *pod) {
	return func(t *testing.T, p *pod) {
		p.call(t, request{Op: "send", Socket: "u", Addr: ap(addr), Payload: "q"})
	}
}

func withdraw(t *testing.T, _ *pod, r *Redirect) { check(t, r.Withdraw()) }

func hang(t *testing.T, _ *pod, r *Redirect) { r.beatAgo(t, 2*longTimeout) }

func receive(t *testing.T, p *pod, from string) {
	t.Helper()
	if got := p.must(t, request{Op: "recv", Socket: "u"}).Addr; got != ap(from) {
		t.Errorf("received from %v, want %s", got, from)
	}
}

func exitCases() []exitCase {
	const send, recv = redirectHookHOOK_SENDMSG4, redirectHookHOOK_RECVMSG4
	return []exitCase{
		{reason: redirectExitReasonEXIT_REDIRECTED, hook: send, do: sendTo(vip4)},
		{reason: redirectExitReasonEXIT_FALLBACK_GONE, hook: send, setUp: withdraw, do: sendTo(vip4)},
		{reason: redirectExitReasonEXIT_FALLBACK_HUNG, hook: send, setUp: hang, do: sendTo(vip4)},
		{reason: redirectExitReasonEXIT_PASSED_GONE, hook: send, setUp: withdraw, do: sendTo(cluster4)},
		{reason: redirectExitReasonEXIT_PASSED_HUNG, hook: send, setUp: hang, do: sendTo(cluster4)},
		{reason: redirectExitReasonEXIT_OTHER_PORT, hook: send, do: sendTo(local4)},
		{reason: redirectExitReasonEXIT_OTHER_ADDRESS, hook: send, do: sendTo(unused4)},
		{reason: redirectExitReasonEXIT_NO_FALLBACK, hook: send,
			setUp: func(t *testing.T, _ *pod, r *Redirect) {
				check(t, r.SetFallbacks(ap(vip4), nil))
				check(t, r.Withdraw())
			}, do: sendTo(vip4)},
		{reason: redirectExitReasonEXIT_EXEMPT, hook: send,
			setUp: func(t *testing.T, p *pod, r *Redirect) { p.exempt(t, r) },
			do:    sendTo(vip4)},
		{reason: redirectExitReasonEXIT_OPTED_OUT, hook: send,
			setUp: func(t *testing.T, p *pod, r *Redirect) { optOut(t, r, p.cgroup) },
			do:    sendTo(vip4)},
		{reason: redirectExitReasonEXIT_OTHER_PROTOCOL, hook: send, do: func(t *testing.T, p *pod) {
			if p.call(t, request{Op: "socket", Socket: "lite", Network: "lit4"}).Errno == unix.EPROTONOSUPPORT {
				t.Skip("the kernel has no UDP-Lite")
			}
			p.call(t, request{Op: "send", Socket: "lite", Addr: ap(vip4), Payload: "q"})
		}},
		{reason: redirectExitReasonEXIT_CONNECTED, hook: send, setUp: func(t *testing.T, p *pod, r *Redirect) {
			check(t, r.Withdraw())
			p.must(t, request{Op: "connect", Socket: "u", Addr: ap(cluster4)})
			check(t, r.Alive())
		}, do: sendTo(cluster4)},
		{reason: redirectExitReasonEXIT_NO_STORAGE, hook: send, setUp: noSocketMemory, do: sendTo(vip4)},
		{reason: redirectExitReasonEXIT_RESTORED, hook: recv, do: func(t *testing.T, p *pod) {
			sendTo(vip4)(t, p)
			receive(t, p, vip4)
		}},
		{reason: redirectExitReasonEXIT_NO_FLOWS, hook: recv, do: func(t *testing.T, p *pod) {
			sendTo(core4)(t, p)
			receive(t, p, core4)
		}},
		{reason: redirectExitReasonEXIT_OTHER_PEER, hook: recv, do: func(t *testing.T, p *pod) {
			sendTo(vip4)(t, p)
			receive(t, p, vip4)
			sendTo(core4)(t, p)
			receive(t, p, core4)
		}},
	}
}

// noSocketMemory leaves no memory for socket storage in the pod's namespace.
func noSocketMemory(t *testing.T, p *pod, _ *Redirect) {
	const path = "/proc/sys/net/core/optmem_max"
	var missing bool
	p.ns.Inside(t, func() error {
		_, err := os.Stat(path)
		if missing = os.IsNotExist(err); missing {
			return nil
		}
		return os.WriteFile(path, []byte("16"), 0)
	})
	if missing {
		t.Skip("before Linux 6.8 all namespaces share optmem_max")
	}
}

func optOut(t *testing.T, r *Redirect, dir string) {
	t.Helper()
	id, err := cgroupID(dir)
	check(t, err)
	check(t, r.OptOut(id))
}

// exempt exempts the pod's namespace, as OpenRedirect does for the daemon's own.
func (p *pod) exempt(t testing.TB, r *Redirect) {
	t.Helper()
	var cookie uint64
	p.ns.Inside(t, func() (err error) {
		cookie, err = netnsCookie()
		if errors.Is(err, unix.ENOPROTOOPT) {
			return nil
		}
		return err
	})
	if cookie == 0 {
		t.Skip("before Linux 5.14 a process cannot learn the cookie of its namespace")
	}
	check(t, r.objs.Exempt.Put(cookie, uint8(1)))
}

func TestExitReasons(t *testing.T) {
	for _, tc := range exitCases() {
		name, _ := tc.reason.label(tc.hook != redirectHookHOOK_RECVMSG4)
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			r := open(t, p.config(t))
			check(t, r.Attach())
			check(t, r.Alive())
			p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
			if tc.setUp != nil {
				tc.setUp(t, p, r)
			}
			tc.do(t, p)
			if n := readHook(t, r, tc.hook, tc.reason); n != 1 {
				t.Errorf("%s was counted %d times, want 1", name, n)
			}
			if got, want := r.runs(t, tc.hook), p.calls(tc.hook); got != want {
				t.Errorf("the hook counted %d exits in %d runs", got, want)
			}
		})
	}
}

// runs returns the sum of a hook's counters.
func (r *Redirect) runs(t *testing.T, h redirectHook) (sum int) {
	for reason := range redirectExitReasonEXIT_COUNT {
		sum += int(readHook(t, r, h, reason))
	}
	return sum
}

// calls returns the number of the agent's system calls that run a hook.
func (p *pod) calls(h redirectHook) int {
	if h == redirectHookHOOK_RECVMSG4 {
		return p.made["recv"]
	}
	return p.made["send"]
}

// exitCases covers every reason.
func TestEveryReasonHasACase(t *testing.T) {
	covered := map[redirectExitReason]bool{
		redirectExitReasonEXIT_NOT_CONFIGURED: true, // an array always has its element
	}
	for _, tc := range exitCases() {
		covered[tc.reason] = true
	}
	for reason := range redirectExitReasonEXIT_COUNT {
		if !covered[reason] {
			t.Errorf("reason %d has no case", reason)
		}
		forward, isForward := reason.label(true)
		reverse, isReverse := reason.label(false)
		if forward == "" || forward != reverse || isForward == isReverse {
			t.Errorf("reason %d: labels %q (%t), %q (%t)", reason, forward, isForward, reverse, isReverse)
		}
	}
}

func TestCollector(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Services[0].Fallbacks = []netip.AddrPort{ap(core4), ap("10.0.0.5:53")}
	r := open(t, cfg)
	reg := prometheus.NewPedanticRegistry()
	check(t, reg.Register(r.Collector()))
	check(t, r.Attach())
	check(t, r.Alive())
	p.ask(t, shapes()[0], "target")
	p.ask(t, shapes()[2], "target")
	p.ask(t, shapes()[2], "target")
	const want = `
# HELP nodens_redirect_alive 1 while the kernel sends lookups to the daemon: the process exists and its heartbeat is recent.
# TYPE nodens_redirect_alive gauge
nodens_redirect_alive 1
# HELP nodens_redirect_fallback_endpoints Addresses to which the kernel sends lookups of a service while the daemon is not alive.
# TYPE nodens_redirect_fallback_endpoints gauge
nodens_redirect_fallback_endpoints{vip="169.254.20.10:53"} 2
nodens_redirect_fallback_endpoints{vip="[fd00:53::10]:53"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "nodens_redirect_alive", "nodens_redirect_fallback_endpoints"); err != nil {
		t.Error(err)
	}
	if n := sample(t, reg, "sendmsg6", "redirected"); n != 2 {
		t.Errorf("sendmsg6 redirected %v times, want 2", n)
	}
	if n := sample(t, reg, "recvmsg4", "restored"); n != 1 {
		t.Errorf("recvmsg4 restored %v times, want 1", n)
	}
	check(t, r.Withdraw())
	if n := testutil.CollectAndCount(r.Collector(), "nodens_redirect_alive"); n != 1 {
		t.Errorf("%d samples of alive, want 1", n)
	}
	check(t, r.Close())
	if n := testutil.CollectAndCount(r.Collector()); n != 0 {
		t.Errorf("%d samples after Close, want none", n)
	}
}

func sample(t *testing.T, reg prometheus.Gatherer, hook, reason string) float64 {
	t.Helper()
	families, err := reg.Gather()
	check(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "nodens_redirect_total" && labels["hook"] == hook && labels["reason"] == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no sample of %s, %s", hook, reason)
	return 0
}
