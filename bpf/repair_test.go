package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// otherVersion is a version of the layout besides ours.
const otherVersion = "9999"

// openOther is openBeside for another version.
func openOther(t testing.TB, cfg RedirectConfig) *Redirect {
	t.Helper()
	r, err := openVersion(cfg, otherVersion)
	check(t, err)
	r.table.timeout = longTimeout
	t.Cleanup(func() { check(t, r.Close()) })
	return r
}

// repair calls Repair and checks the results.
func repair(t *testing.T, r *Redirect, who Steering, restored string, open bool) {
	t.Helper()
	gotWho, gotRestored, gotOpen, err := r.Repair()
	if gotWho != who || gotRestored != restored || gotOpen != open || err != nil {
		t.Errorf("Repair: %v, %q, %v, %v, want %v, %q, %v", gotWho, gotRestored, gotOpen, err, who, restored, open)
	}
}

// Repair restores pins that another process removes. Meanwhile no socket escapes
// redirection.
func TestRepairPins(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Engage())
	repair(t, r, Ours, "", false)
	for _, remove := range []string{r.pinDir, r.dir, filepath.Join(r.dir, linksDir), r.links.path(hooks()[0]), filepath.Join(r.dir, redirectMapCanary)} {
		check(t, os.RemoveAll(remove))
		p.ask(t, shapes()[0], "target")
		repair(t, r, Ours, "pins", false)
		repair(t, r, Ours, "", false)
		pinned, err := Inspect(r.pinDir)
		if err != nil || len(pinned) != 1 || !pinned[0].Attached() || !pinned[0].Canary {
			t.Errorf("after removal of %s and repair: %+v, %v", remove, pinned, err)
		}
	}
	check(t, r.Close())
	p.askAll(t, "core") // the pins outlive the process
}

func TestRepairLink(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Engage())
	for _, h := range hooks() {
		l, err := link.LoadPinnedLink(r.links.path(h), nil)
		check(t, err)
		check(t, l.Detach())
		check(t, l.Close())
		repair(t, r, Ours, "program "+h.name, true)
	}
	p.askAll(t, "target")
	checkAttached(t, p.kubepods, 1)
}

func TestRepairCgroup(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	cfg.Cgroup = lab.NewKubepods(t)
	r := open(t, cfg)
	check(t, r.Engage())
	check(t, os.Remove(cfg.Cgroup))
	if _, _, _, err := r.Repair(); err == nil {
		t.Error("Repair without a cgroup: no error")
	}
	check(t, os.Mkdir(cfg.Cgroup, 0o755))
	repair(t, r, Ours, "program "+hooks()[0].name, true)
	inside := lab.MakeCgroup(t, filepath.Join(cfg.Cgroup, "pod"))
	again := &pod{agent: startAgent(t, p.ns, inside), ns: p.ns}
	again.askAll(t, "target")
}

// A process whose pins were removed gives way to one that pinned its own, and takes
// them back when that one has ended.
func TestRepairAfterReplacement(t *testing.T) {
	p := newPod(t)
	old := open(t, p.config(t))
	check(t, old.Engage())
	check(t, os.RemoveAll(old.pinDir))
	next := openBeside(t, p.config(t))
	check(t, next.Engage())
	repair(t, old, Others, "", false)
	check(t, next.Close())
	repair(t, old, Ours, "pins", false)
	p.askAll(t, "target")
	checkAttached(t, p.kubepods, 1)
}

// An operator's teardown holds for a running process, also if it is repeated, until
// the next process starts.
func TestTeardownUnderAProcess(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	r := open(t, cfg)
	check(t, r.Engage())
	for range 2 {
		check(t, Teardown(cfg.PinDir))
		repair(t, r, TornDown, "", false)
		checkAttached(t, p.kubepods, 0)
	}
	if used, err := InUse(cfg.PinDir); !used || err != nil {
		t.Errorf("in use: %t, %v", used, err)
	}
	if err := r.Engage(); !errors.Is(err, ErrTornDown) { // as a reload does
		t.Errorf("engage after teardown: %v", err)
	}
	check(t, AllowSteering(cfg.PinDir))
	repair(t, r, Ours, "program "+hooks()[0].name, true)
	p.askAll(t, "target")
	check(t, Teardown(cfg.PinDir))
	check(t, r.Close())
	check(t, Teardown(cfg.PinDir))
	if _, err := os.Stat(cfg.PinDir); !os.IsNotExist(err) {
		t.Errorf("stat of the pin directory: %v", err)
	}
}

// A process of another version takes over. The older one never harms it, even right
// after both have started. When the newer one has ended, the older one takes over again.
func TestTwoVersions(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	old := open(t, cfg)
	check(t, old.Engage())
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	p.must(t, request{Op: "send", Socket: "u", Addr: ap(vip4), Payload: "q"})
	next := openOther(t, cfg)
	check(t, next.Engage())
	receive(t, p, vip4) // the old version still translates replies
	for range 2 {
		check(t, old.RemoveOtherVersions())
		check(t, next.RemoveOtherVersions())
		repair(t, old, Others, "", false)
		repair(t, next, Ours, "", false)
		p.askAll(t, "target")
	}
	checkNames(t, cfg.PinDir, 2)

	check(t, next.Close())
	p.askAll(t, "core")
	repair(t, old, Ours, "program "+redirectProgSendmsg4, true)
	p.askAll(t, "target")
	check(t, old.RemoveOtherVersions())
	checkNames(t, cfg.PinDir, 1)
	checkAttached(t, p.kubepods, 1)
}

// A process that is starting, or waits in mode auto, is not disturbed.
func TestStartingVersion(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	old := open(t, cfg)
	check(t, old.Engage())
	next := openOther(t, cfg)
	check(t, old.RemoveOtherVersions())
	checkNames(t, next.dir, len(next.pinnedMaps())+1) // and the links
	check(t, next.Close())
	check(t, old.RemoveOtherVersions())
	checkNames(t, cfg.PinDir, 1)
}

// A frozen process of another version keeps its pins and loses its place.
func TestFrozenVersion(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	old := open(t, cfg)
	check(t, old.Engage())
	frozen := openOther(t, cfg)
	check(t, frozen.Engage())
	frozen.beatAgo(t, 2*StaleHeartbeat)
	repair(t, old, Ours, "program "+redirectProgSendmsg4, true)
	check(t, old.RemoveOtherVersions())
	checkNames(t, cfg.PinDir, 2)
	p.askAll(t, "target")
	repair(t, frozen, Others, "", false) // it continues
}

func TestTeardown(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	for _, version := range []string{layoutVersion, otherVersion} {
		r, err := openVersion(cfg, version)
		check(t, err)
		check(t, r.Engage())
		if version == layoutVersion {
			check(t, os.Rename(r.links.path(hooks()[0]), filepath.Join(r.dir, linksDir, "hook_of_tomorrow")))
		}
		check(t, r.Close())
	}
	for range 2 {
		check(t, Teardown(cfg.PinDir))
		if _, err := os.Stat(cfg.PinDir); !os.IsNotExist(err) {
			t.Errorf("stat of the pin directory: %v", err)
		}
		checkAttached(t, p.kubepods, 0)
	}
	p.must(t, request{Op: "socket", Socket: "u", Network: "udp4"})
	if got := p.call(t, request{Op: "send", Socket: "u", Addr: ap(vip4), Payload: "q"}); got.Errno != unix.ENETUNREACH {
		t.Errorf("send to the VIP after teardown: %v", got.Errno)
	}
}

// A check of what is right costs little: it runs every few seconds on every node.
func BenchmarkRepair(b *testing.B) {
	p := newPod(b)
	r := open(b, p.config(b))
	check(b, r.Engage())
	b.ResetTimer()
	for range b.N {
		if _, restored, _, err := r.Repair(); restored != "" || err != nil {
			b.Fatal(restored, err)
		}
	}
}

func BenchmarkHasSocketLB(b *testing.B) {
	p := newPod(b)
	for range b.N {
		_, err := HasSocketLB(p.kubepods)
		check(b, err)
	}
}

// A process that waits for the pins of a frozen one still sends heartbeats.
func TestBeatWhileWaiting(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	check(t, r.Engage())
	frozen, err := os.Open(r.pinDir)
	check(t, err)
	defer frozen.Close()
	check(t, unix.Flock(int(frozen.Fd()), unix.LOCK_EX))
	for range 10 { // a busy machine may delay a heartbeat, too
		began := time.Now()
		repaired := make(chan error)
		go func() {
			_, _, _, err := r.Repair()
			repaired <- err
		}()
		var longest time.Duration
		for waiting := true; waiting; {
			before := time.Now()
			_, err := r.Beat(0)
			check(t, err)
			longest = max(longest, time.Since(before))
			select {
			case err := <-repaired:
				check(t, err)
				waiting = false
			default:
			}
		}
		if 2*longest < time.Since(began) {
			return
		}
	}
	t.Error("heartbeats wait for the pins")
}
