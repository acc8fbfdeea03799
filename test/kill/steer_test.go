package kill

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// repaired is what a worker logs after a repair.
const repaired = "redirection had changed, repaired"

// losses are ways in which redirection gets lost while the daemon runs.
var losses = []struct {
	name string
	do   func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon
}{
	{"pins removed", func(t *testing.T, n *node, _ *lab.Memory, d *daemon) *daemon {
		mark := d.Err.Mark()
		// nodens may pin again before the directory is empty.
		if err := os.RemoveAll(n.pinDir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			t.Fatal(err)
		}
		d.Err.WaitFor(t, mark, repaired)
		return d
	}},
	{"link detached", func(t *testing.T, n *node, _ *lab.Memory, d *daemon) *daemon {
		for _, hook := range []string{"connect4", "sendmsg4"} {
			mark := d.Err.Mark()
			n.detach(t, hook)
			d.Err.WaitFor(t, mark, repaired)
		}
		return d
	}},
	{"a frozen predecessor", func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		worker := d.worker(t)
		d.Signal(t, syscall.SIGSTOP)
		_ = unix.Kill(worker, syscall.SIGSTOP)
		pause(t, time.Second)
		next := n.start(t, m)
		next.Err.WaitFor(t, 0, "a frozen nodens still holds the ports")
		pause(t, 2*time.Second)
		_ = unix.Kill(worker, syscall.SIGCONT)
		d.Signal(t, syscall.SIGCONT)
		d.stop(t)
		return next
	}},
	{"a young process and one of another shape", func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		next := n.startProgram(t, m, d.otherShape())
		pause(t, 12*time.Second) // longer than a process waits before it removes pins of others
		d.stop(t)
		return next
	}},
	{"the older shape takes over again", func(t *testing.T, n *node, m *lab.Memory, d *daemon) *daemon {
		next := n.startProgram(t, m, d.otherShape())
		mark := d.Err.Mark()
		worker := next.worker(t)
		next.Signal(t, syscall.SIGKILL)
		_ = unix.Kill(worker, syscall.SIGKILL)
		d.Err.WaitFor(t, mark, repaired)
		next.Wait(t)
		return d
	}},
}

// otherShape is a build whose maps differ from those of d.
func (d *daemon) otherShape() *lab.Program {
	if d.program == otherShape {
		return nodens
	}
	return otherShape
}

// TestLosses checks that no lookup fails while redirection is lost and restored, on a
// node whose CNI does not deliver the local address to pods.
func TestLosses(t *testing.T) { testLosses(t, newNode(t), func() {}) }

// TestLossesWithFastpath does the same while the kernel answers every second lookup.
func TestLossesWithFastpath(t *testing.T) {
	onlyLong(t)
	n := newNode(t)
	n.useFastpath(t)
	testLosses(t, n, func() { n.waitForKernel(t) })
}

// testLosses calls atEnd while the clients still look up names.
func testLosses(t *testing.T, n *node, atEnd func()) {
	t.Helper()
	n.dropLocalAddress(t)
	m := lab.NewMemory(t)
	otherShape.Path(t) // a build would slow the daemon down
	d := n.start(t, m)
	clients := n.startClients(t)
	endRound(t, clients, marksOf(clients)) // warm up
	for _, l := range losses {
		if *only != "" && l.name != *only {
			continue
		}
		marks := marksOf(clients)
		d = l.do(t, n, m, d)
		all := [][]result{endRound(t, clients, marks)}
		report(t, l.name, clients, append(all, n.waitForDaemon(t, clients)...))
	}
	atEnd()
	for _, c := range clients {
		c.Kill()
	}
}

// The cgroup of all pods is removed and made again, as after a restart of the kubelet
// with another configuration. The lookups of new pods do not fail.
func TestCgroupMadeAnew(t *testing.T) {
	n := newNode(t)
	n.dropLocalAddress(t)
	d := n.start(t, lab.NewMemory(t))
	for _, c := range n.startClients(t) {
		c.Kill()
	}
	removeAll(t, n.kubepods)
	mark := d.Err.Mark()
	if err := os.Mkdir(n.kubepods, 0o755); err != nil {
		t.Fatal(err)
	}
	d.Err.WaitFor(t, mark, repaired)
	clients := n.startClients(t)
	report(t, "cgroup made anew", clients, append([][]result{endRound(t, clients, marksOf(clients))}, n.waitForDaemon(t, clients)...))
	for _, c := range clients {
		c.Kill()
	}
}

// removeAll removes a cgroup and those below it. Their processes are ending.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	dirs, _ := filepath.Glob(filepath.Join(dir, "*/"))
	for _, d := range append(dirs, dir) {
		for late := time.Now().Add(lab.QueryTimeout); ; {
			err := unix.Rmdir(d)
			if err == nil || err == unix.ENOTDIR {
				break
			}
			if time.Now().After(late) {
				t.Fatalf("remove %s: %v", d, err)
			}
			pause(t, 10*time.Millisecond)
		}
	}
}

// dropLocalAddress lets the node drop what pods send to the local address, as some
// versions of Cilium do.
func (n *node) dropLocalAddress(t *testing.T) {
	t.Helper()
	n.Nft(t, "table inet cni { chain pods { type filter hook prerouting priority -400; iifname pod* ip daddr "+vip+" drop; }; }")
}

// detach detaches a program, as another program on the node may do.
func (n *node) detach(t *testing.T, hook string) {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(n.pinDir, "v*", "links", hook))
	if len(found) != 1 {
		t.Fatalf("pinned links of %s: %v", hook, found)
	}
	l, err := link.LoadPinnedLink(found[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
}
