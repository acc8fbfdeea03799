package kill

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// tiers are those of the chart, with their capabilities for setpriv.
var tiers = []struct {
	name, caps string
	// loses are the clients whose lookups in flight fail when the worker dies or hangs.
	loses []string
}{
	{"full", "+net_admin,+net_bind_service,+bpf,+perfmon,+sys_admin,+sys_ptrace", nil},
	{"resilient", "+net_admin,+net_bind_service,+bpf,+perfmon", []string{"glibc"}},
	{"minimal", "+net_admin,+net_bind_service", []string{"musl", "glibc", "go", "tcp"}},
}

// away is how long no nodens runs after the death of a container.
const away = 5 * time.Second

// deaths are those of docs/supervisor.md. do returns when a worker serves again.
var deaths = []struct {
	name string
	away bool // longer than glibc waits for an answer
	do   func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon
}{
	{"the worker crashes", false, func(t *testing.T, _ *node, _ *lab.Memory, d *daemon) *daemon {
		mark := d.Out.Mark()
		d.signal(t, syscall.SIGKILL)
		d.Out.WaitFor(t, mark, ` listens on `)
		return d
	}},
	{"the worker hangs", false, func(t *testing.T, _ *node, _ *lab.Memory, d *daemon) *daemon {
		mark := d.Out.Mark()
		d.signal(t, syscall.SIGSTOP)
		d.Out.WaitFor(t, mark, ` listens on `)
		return d
	}},
	{"the container dies", true, func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		worker := d.worker(t)
		d.Signal(t, syscall.SIGSTOP) // it must not see the worker die
		if err := unix.Kill(worker, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.Signal(t, syscall.SIGKILL)
		d.Wait(t)
		pause(t, away)
		next := n.launch(t, m, nodens)
		next.Out.WaitFor(t, 0, ` listens on `)
		return next
	}},
}

// TestTiers prints what each kind of death loses in each tier: the table in
// docs/supervisor.md. Lookups that begin after it do not fail. With redirection, new ones
// do not fail either. With the tier full, only those of glibc do that wait for 5 s.
func TestTiers(t *testing.T) {
	onlyLong(t)
	lab.NeedTools(t, "setpriv")
	for _, tier := range tiers {
		t.Run(tier.name, func(t *testing.T) {
			n := newNode(t)
			n.confine = []string{"setpriv", "--bounding-set=-all," + tier.caps, "--inh-caps=-all", "--"}
			if tier.name == "minimal" {
				n.writeConfWithout(t)
				n.pinDir = filepath.Join(t.TempDir(), "pins") // its pod does not have /sys/fs/bpf
			}
			m := lab.NewMemory(t)
			d := n.launch(t, m, nodens)
			d.Out.WaitFor(t, 0, ` listens on `)
			if tier.name != "minimal" {
				d.Err.WaitFor(t, 0, redirected)
			}
			clients := n.startClients(t)
			endRound(t, clients, marksOf(clients)) // warm up
			for _, death := range deaths {
				marks := marksOf(clients)
				d = death.do(t, n, m, d)
				lost := endRound(t, clients, marks)
				n.waitForDaemon(t, clients)
				loses := tier.loses
				if death.away {
					loses = append(slices.Clone(loses), "glibc") // its retry reaches a closed port
				}
				judge(t, tier.name, death.name, loses, clients, lost)
				report(t, "after: "+death.name, clients, [][]result{endRound(t, clients, marksOf(clients))})
			}
			for _, c := range clients {
				c.Kill()
			}
		})
	}
}

// judge prints what was lost, and fails the test for clients that should lose nothing.
// With redirection, those that wait for an answer may fail, but no others: a client has
// at most one for each of its workers.
func judge(t *testing.T, tier, death string, loses []string, clients []*client, lost []result) {
	t.Helper()
	for i, c := range clients {
		limit := 0
		if slices.Contains(loses, c.name) {
			limit = workers
		}
		if tier == "minimal" {
			limit = lost[i].count // the address answers nothing meanwhile
		}
		t.Logf("%-10s %-20s %-5s %6d lookups, %d failed, the longest took %v", tier, death, c.name, lost[i].count, lost[i].failed, lost[i].longest)
		if lost[i].failed > limit {
			t.Errorf("%s, %s: %s failed %d times, at most %d: %v", tier, death, c.name, lost[i].failed, limit, lost[i].failures)
		}
	}
}

// TestLowerTier changes the tier from full to minimal in one step, which the new process
// refuses, and then with a step between that turns redirection off.
func TestLowerTier(t *testing.T) {
	n := newNode(t)
	m := lab.NewMemory(t)
	full := n.start(t, m)
	pins, none := n.pinDir, filepath.Join(t.TempDir(), "pins") // minimal has no /sys/fs/bpf
	n.writeConfWithout(t)
	n.pinDir = none
	refused := n.launch(t, m, nodens)
	if status := refused.Wait(t); status == 0 {
		t.Error("the tier minimal started")
	}
	refused.Err.WaitFor(t, 0, "an earlier nodens has pinned BPF programs")
	n.pinDir = pins
	off := n.launch(t, m, nodens)
	off.Out.WaitFor(t, 0, ` listens on `)
	full.stop(t)
	for late := time.Now().Add(2 * time.Minute); ; pause(t, 100*time.Millisecond) {
		if _, err := os.Stat(n.snapshot + ".pins"); os.IsNotExist(err) {
			break
		}
		if time.Now().After(late) {
			t.Fatal("the mark of the pins stays")
		}
	}
	n.pinDir = none
	minimal := n.launch(t, m, nodens)
	minimal.Out.WaitFor(t, 0, ` listens on `)
	off.stop(t)
}
