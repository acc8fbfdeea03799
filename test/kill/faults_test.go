package kill

import (
	"cmp"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// fault is what happens to the daemon. do returns the daemon that runs afterwards.
type fault struct {
	name string
	// falls: pods use the fallback meanwhile.
	falls bool
	do    func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon
}

var faults = []fault{
	{"kill -9", true, func(t *testing.T, _ *node, _ *lab.Memory, d *daemon) *daemon {
		mark := d.mark()
		d.signal(t, syscall.SIGKILL)
		d.waitForRedirected(t, mark)
		return d
	}},
	{"SIGSTOP forever", true, func(t *testing.T, _ *node, _ *lab.Memory, d *daemon) *daemon {
		mark := d.mark()
		d.signal(t, syscall.SIGSTOP)
		d.waitForRedirected(t, mark)
		return d
	}},
	{"SIGSTOP for a second", true, func(t *testing.T, _ *node, _ *lab.Memory, d *daemon) *daemon {
		worker := d.worker(t)
		pause(t, 2*time.Second) // the supervisor's minimum time between two frees
		mark := d.Err.Mark()
		d.signal(t, syscall.SIGSTOP)
		d.Err.WaitFor(t, mark, "no heartbeat from the worker")
		pause(t, time.Second)
		_ = unix.Kill(worker, unix.SIGCONT) // on a slow machine it may have been killed
		d.Err.WaitFor(t, mark, "the worker sends heartbeats again|"+redirected)
		if now := d.worker(t); now != worker {
			t.Logf("worker %d was replaced by %d: the machine is slow", worker, now)
		}
		return d
	}},
	{"out of memory", true, func(t *testing.T, _ *node, m *lab.Memory, d *daemon) *daemon {
		mark := d.mark()
		exhaust(t, m)
		d.waitForRedirected(t, mark)
		return d
	}},
	{"supervisor only", true, func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		d.Signal(t, syscall.SIGKILL)
		d.Wait(t) // also waits for the worker, which ends by itself
		return n.start(t, m)
	}},
	{"all at once", true, func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon { // as when a container is killed
		worker := d.worker(t)
		d.Signal(t, syscall.SIGKILL)
		// The worker may have ended by itself before.
		if err := unix.Kill(worker, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
		d.Wait(t)
		return n.start(t, m)
	}},
	{"upgrade", false, func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		next := n.start(t, m)
		d.stop(t)
		return next
	}},
}

// TestFaults checks that no lookup fails during any fault, and prints how long the
// longest took.
func TestFaults(t *testing.T) { testFaults(t, newNode(t), func() {}) }

// TestFaultsWithFastpath does the same while the kernel answers every second lookup of
// the redirected pods. They send it to the target's address and port.
func TestFaultsWithFastpath(t *testing.T) {
	onlyLong(t)
	n := newNode(t)
	n.useFastpath(t)
	testFaults(t, n, func() { n.waitForKernel(t) })
}

const metrics = "127.0.0.1:9253"

// useFastpath turns the fast path on. Every second lookup of a client is then for the
// same name.
func (n *node) useFastpath(t *testing.T) {
	t.Helper()
	n.popular = true
	n.writeConf(t, "fallback "+coreDNS, "prometheus "+metrics, "fastpath on")
}

// waitForKernel waits until the kernel has given answers for the daemon that runs.
func (n *node) waitForKernel(t *testing.T) {
	t.Helper()
	for late := time.Now().Add(2 * time.Minute); ; pause(t, 100*time.Millisecond) {
		sum, _ := n.Scrape(t, metrics).Sum("nodens_kernel_answers_total")
		if sum >= 100 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("after the last fault, the kernel gave %v answers", sum)
		}
	}
}

// testFaults calls atEnd while the clients still look up names.
func testFaults(t *testing.T, n *node, atEnd func()) {
	t.Helper()
	m := lab.NewMemory(t)
	d := n.start(t, m)
	clients := n.startClients(t)
	supervisor, own := memoryOf(t, d.PID())
	worker, _ := memoryOf(t, d.worker(t))
	t.Logf("resident memory: supervisor %d KiB (%d anonymous), worker %d KiB", supervisor, own, worker)
	endRound(t, clients, marksOf(clients)) // warm up
	report(t, "no fault", clients, [][]result{endRound(t, clients, marksOf(clients))})
	for _, f := range faults {
		if *only != "" && f.name != *only {
			continue
		}
		var all [][]result
		for range *rounds {
			atCoreDNS := n.atCoreDNS.Load()
			marks := marksOf(clients)
			d = f.do(t, n, m, d)
			all = append(all, endRound(t, clients, marks))
			if f.falls && n.atCoreDNS.Load() == atCoreDNS {
				t.Errorf("%s: no query reached the fallback", f.name)
			}
			all = append(all, n.waitForDaemon(t, clients)...)
		}
		report(t, f.name, clients, all)
	}
	atEnd()
	for _, c := range clients {
		c.Kill()
	}
}

// waitForDaemon waits until lookups go through the daemon again. It returns the
// results of the rounds meanwhile.
func (n *node) waitForDaemon(t *testing.T, clients []*client) (all [][]result) {
	t.Helper()
	before := n.atServer.Load()
	for start := time.Now(); n.atServer.Load() == before; {
		if time.Since(start) > lab.QueryTimeout {
			t.Fatal("no query reaches the daemon any more")
		}
		all = append(all, endRound(t, clients, marksOf(clients)))
	}
	return all
}

// report prints the rounds of a fault and fails the test for each failed lookup.
func report(t *testing.T, name string, clients []*client, all [][]result) {
	t.Helper()
	for i, c := range clients {
		var count, failed int
		var longest []time.Duration
		for _, round := range all {
			r := round[i]
			count, failed = count+r.count, failed+r.failed
			longest = append(longest, r.longest)
			for _, f := range r.failures[:min(len(r.failures), 5)] {
				t.Errorf("%s: %s", name, f)
			}
		}
		if count == 0 {
			t.Errorf("%s: no lookups by %s", name, c.name)
		}
		slices.SortFunc(longest, cmp.Compare)
		t.Logf("%-20s %-5s %6d lookups, %d failed, the longest took %v",
			name, c.name, count, failed, longest[len(longest)-1])
	}
}
