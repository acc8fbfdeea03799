package bpf

import (
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// newServedPod returns a pod, and the configuration of a daemon that serves its target.
func newServedPod(t testing.TB) (*pod, daemonConfig) {
	p := newPod(t)
	p.ns.AddAddrs(t, "lo", "10.0.0.4/32", "fd00::4/128")
	cfg := p.config(t)
	cfg.Services[0].Target, cfg.Services[1].Target, cfg.Services[2].Target = ap("10.0.0.4:10053"), ap("[fd00::4]:10053"), ap("10.0.0.4:10053")
	t.Cleanup(func() {
		if err := Teardown(cfg.PinDir); err != nil {
			t.Error(err)
		}
	})
	return p, daemonConfig{Redirect: cfg, Timeout: longTimeout, Name: "daemon", Serve: []netip.AddrPort{ap("10.0.0.4:10053"), ap("[fd00::4]:10053")}}
}

func TestKilledDaemon(t *testing.T) {
	p, cfg := newServedPod(t)
	for range 10 {
		d := startDaemon(t, nil, p.ns, cfg)
		p.askAll(t, "daemon")
		d.kill(t)
		p.askAll(t, "core") // at once: the kernel closes a process's sockets before wait returns
	}
}

func TestStoppedDaemon(t *testing.T) {
	p, cfg := newServedPod(t)
	cfg.Timeout = 5 * time.Second
	d := startDaemon(t, nil, p.ns, cfg)
	o := openBeside(t, cfg.Redirect)
	o.table.timeout = cfg.Timeout
	before := readHook(t, o, redirectHookHOOK_CONNECT4, redirectExitReasonEXIT_FALLBACK_HUNG)
	d.signal(t, syscall.SIGSTOP)
	waitAlive(t, o, false)
	p.askAll(t, "core")
	if after := readHook(t, o, redirectHookHOOK_CONNECT4, redirectExitReasonEXIT_FALLBACK_HUNG); after == before {
		t.Error("no connect was counted as fallback_hung")
	}
	d.signal(t, syscall.SIGCONT)
	waitAlive(t, o, true)
	p.askAll(t, "daemon")
	d.signal(t, syscall.SIGSTOP)
	d.kill(t)
	p.askAll(t, "core")
}

func TestNormalStop(t *testing.T) {
	p, cfg := newServedPod(t)
	d := startDaemon(t, nil, p.ns, cfg)
	p.askAll(t, "daemon")
	d.stop(t)
	p.askAll(t, "core")
}

// A successor takes over from a process that withdraws afterwards.
func TestSuccessorKeepsItsCanary(t *testing.T) {
	p := newPod(t)
	old := open(t, p.config(t))
	check(t, old.Attach())
	check(t, old.Alive())
	next := openBeside(t, p.config(t))
	check(t, next.Attach())
	p.askAll(t, "target")
	check(t, next.Alive())
	check(t, old.Withdraw())
	p.askAll(t, "target")
	check(t, next.Withdraw())
	p.askAll(t, "core")
}

// Only a process that is alive may send heartbeats. Otherwise one that is starting
// would make its hung predecessor look healthy.
func TestBeatNeedsAlive(t *testing.T) {
	p := newPod(t)
	hung := open(t, p.config(t))
	check(t, hung.Attach())
	check(t, hung.Alive())
	next := openBeside(t, p.config(t))
	hung.beatAgo(t, 2*longTimeout)
	sendBeat(t, next)
	p.askAll(t, "core")
	sendBeat(t, hung)
	p.askAll(t, "target")
	check(t, hung.Withdraw())
	hung.beatAgo(t, 2*longTimeout)
	sendBeat(t, hung)
	if age, _, err := hung.state(); err != nil || age < longTimeout {
		t.Errorf("a heartbeat after Withdraw counts: age %v, %v", age, err)
	}
}

// A late heartbeat means that the daemon hangs, even if the canary is in the map.
func TestLateHeartbeat(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Attach())
	check(t, r.Alive())
	for _, tc := range []struct {
		ago  time.Duration
		want string
	}{
		{0, "target"},
		{longTimeout - time.Minute, "target"},
		{longTimeout + time.Minute, "core"},
		{-time.Minute, "target"}, // the clock of the programs lags
	} {
		r.beatAgo(t, tc.ago)
		t.Run(tc.ago.String(), func(t *testing.T) { p.askAll(t, tc.want) })
	}
}

// beatAgo writes a heartbeat with a time in the past, or in the future.
func (r *Redirect) beatAgo(t testing.TB, ago time.Duration) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	check(t, r.objs.Heartbeat.Put(uint32(0), uint64(r.beat.now()-ago.Nanoseconds())))
}

func readHook(t testing.TB, r *Redirect, h redirectHook, reason redirectExitReason) uint64 {
	t.Helper()
	n, err := readExits(r.objs.Exits, h, reason)
	check(t, err)
	return n
}

// SetFallbacks of a process that does not hold the canary leaves the target of the
// other process in place.
func TestFallbacksOfOtherProcess(t *testing.T) {
	p := newPod(t)
	const unserved = "10.0.0.2:10054"
	learn := func(r *Redirect) { check(t, r.SetFallbacks(ap(vip4), []netip.AddrPort{ap(core4)})) }
	target := func(when, want string) {
		t.Helper()
		pinned, err := Inspect(p.config(t).PinDir)
		check(t, err)
		for _, s := range pinned[0].Services {
			if s.VIP == ap(vip4) && s.Target != ap(want) {
				t.Errorf("%s: the target is %v, want %s", when, s.Target, want)
			}
		}
	}
	old := open(t, p.config(t))
	check(t, old.Attach())
	check(t, old.Alive())
	moved := p.config(t)
	moved.Services[0].Target = ap(unserved)
	moved.Services[0].Fallbacks = nil
	next := openBeside(t, moved)
	learn(next)
	target("not alive yet", target4)
	p.askAll(t, "target")
	check(t, next.Alive())
	target("alive", unserved)
	learn(old)
	target("another is alive", unserved)
	check(t, old.Withdraw())
	learn(old)
	target("withdrawn", unserved)
	check(t, next.Withdraw())
	p.askAll(t, "core")
}

// If two processes are alive, only the later one's heartbeat counts. When it ends, the
// earlier one takes over again with its next heartbeat.
func TestSuccessorEnds(t *testing.T) {
	p := newPod(t)
	old := open(t, p.config(t))
	check(t, old.Attach())
	check(t, old.Alive())
	moved := p.config(t)
	moved.Services[0].Target = ap("10.0.0.2:10054") // nothing listens there
	next := openBeside(t, moved)
	check(t, next.Attach())
	check(t, next.Alive())
	next.beatAgo(t, StaleHeartbeat/2)
	if got, err := old.Beat(0); got != BeatNone || err != nil {
		t.Errorf("Beat of the older process: %d, %v", got, err)
	}
	if age, _, err := old.state(); err != nil || age < time.Second {
		t.Errorf("a heartbeat of the older process counts: age %v, %v", age, err)
	}
	check(t, next.Close())
	sendBeat(t, old)
	p.askAll(t, "target")
	check(t, old.Close())
}

// A process that is alive takes over from a successor that is frozen.
func TestBeatTakesOverFromAFrozenProcess(t *testing.T) {
	p := newPod(t)
	old := open(t, p.config(t))
	check(t, old.Engage())
	next := openBeside(t, p.config(t))
	check(t, next.Engage())
	next.beatAgo(t, 2*longTimeout)
	p.askAll(t, "core")
	if got, err := old.Beat(0); got != BeatFromFrozen || err != nil {
		t.Errorf("Beat: %d, %v", got, err)
	}
	p.askAll(t, "target")
	sendBeat(t, next) // it continues
	check(t, next.Close())
	p.askAll(t, "target")
}

func sendBeat(t *testing.T, r *Redirect) {
	t.Helper()
	if got, err := r.Beat(0); got == BeatFromFrozen || err != nil {
		t.Errorf("Beat: %d, %v", got, err)
	}
}
