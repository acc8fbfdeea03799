package hostmode

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// surge is a node whose nodens is replaced again and again, by the arguments of
// the addon: the local address and the Service's, as a DaemonSet with maxSurge
// does.
type surge struct {
	n    *node
	pod  *lab.Netns
	args []string
}

func newSurge(t *testing.T, more ...string) *surge {
	t.Helper()
	lab.NeedTools(t, "gcc", "musl-gcc")
	f := readFixture(t, "testdata/fixtures/addon-iptables.txtar")
	s := &surge{n: f.newNode(t)}
	s.pod = s.n.addPod(t)
	s.n.pretendKubeProxy(t)
	s.n.migrateRequests(t)
	i := slices.Index(f.args, "-pidfile")
	s.args = append(slices.Delete(f.args, i, i+2), more...)
	return s
}

// migrateRequests has the kernel give a closing socket's half-open connections to
// another socket of the address, which it does not do by default: it resets them,
// and TestSurge of package test counts those.
func (n *node) migrateRequests(t *testing.T) {
	t.Helper()
	must(t, n.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0) }))
}

// load starts about 500 look-ups a second, of which 300 are ours. serviceTCP are
// those of the Service over TCP.
func (s *surge) load(t *testing.T, serviceTCP int) *load {
	t.Helper()
	l, ctx := startLoad(t)
	if serviceTCP > 0 {
		l.dig(ctx, s.pod, "tcp", serviceAddr, "tcp-pod-service", serviceTCP)
	}
	l.dig(ctx, s.pod, "udp", localAddr, "udp-pod-local", 80)
	l.dig(ctx, s.n.Netns, "udp", localAddr, "udp-node-local", 40)
	l.dig(ctx, s.pod, "udp", serviceAddr, "udp-pod-service", 60)
	l.dig(ctx, s.n.Netns, "udp", serviceAddr, "udp-node-service", 40)
	l.dig(ctx, s.pod, "tcp", localAddr, "tcp-pod-local", 60-serviceTCP)
	l.dig(ctx, s.n.Netns, "tcp", localAddr, "tcp-node-local", 20)
	glibc, musl := glibcClient.Path(t), muslClient.Path(t)
	l.getaddrinfo(t, s.pod, glibc, localIP, 75)
	l.getaddrinfo(t, s.pod, musl, localIP, 75)
	l.getaddrinfo(t, s.n.Netns, glibc, serviceIP, 25)
	l.getaddrinfo(t, s.pod, musl, serviceIP, 25)
	return l
}

var generation = regexp.MustCompile(`rules\tpresent \(generation (\S+)\)`)

// generation is whose the rules are; everything must be as wanted.
func (s *surge) generation(t *testing.T) string {
	t.Helper()
	out, errs, status := s.n.command(append([]string{plain.Path(t), "status"}, s.args...)).Output(t)
	m := generation.FindStringSubmatch(out)
	if status != 0 || m == nil {
		t.Fatalf("nodens status: %d\n%s%s", status, out, errs)
	}
	return m[1]
}

// TestSurgeUpgrades replaces the process twenty times; no look-up fails, and
// none takes so long that a packet must have been lost.
func TestSurgeUpgrades(t *testing.T) {
	s := newSurge(t)
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	was := s.generation(t)
	l := s.load(t, 20)
	for range 20 {
		d := s.n.launch(t, plain, s.args...)
		d.ready(t)
		now := s.generation(t)
		if now == was {
			t.Errorf("the rules are still of generation %s", was)
		}
		host := s.ours(t, now)
		l.await(t, 75)
		old.stop(t)
		if g := s.generation(t); g != now {
			t.Errorf("after the old process's end the rules are of generation %s, want %s", g, now)
		}
		if d := differing(host, s.ours(t, now)); d != "" {
			t.Errorf("the old process's end changed the host:\n%s", d)
		}
		s.n.has(t, false, "nodens-"+was)
		l.await(t, 75)
		old, was = d, now
	}
	l.stop(t)
	old.stop(t)
	s.n.asBefore(t, "after the last process's end")
}

// TestSurgeRollback ends newer processes while the old one serves: three whose
// start fails, after they took over link and addresses, and two that were ready
// and had the rules as well. The old one gets all back, no look-up fails, and it
// has nothing to repair.
func TestSurgeRollback(t *testing.T) {
	s := newSurge(t)
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	was := s.generation(t)
	host := s.ours(t, was)
	unchanged := func(after string) {
		t.Helper()
		if d := differing(host, s.ours(t, was)); d != "" {
			t.Errorf("%s the host is not as the old process had it:\n%s", after, d)
		}
	}
	s.n.Listen(t, "tcp", ":9254")
	failing := s.scrapedAt(t, ":9254")
	l := s.load(t, 20)
	for range 3 {
		l.await(t, 75)
		d := failing.launch(t, plain, s.args...)
		if status := d.Wait(t); status == 0 || !strings.Contains(d.Err.Text(), ":9254") {
			t.Errorf("the start beside the holder of port 9254: status %d\n%s", status, d.log())
		}
		unchanged("after a start that failed")
	}
	for range 2 {
		l.await(t, 75)
		d := s.n.launch(t, plain, s.args...)
		d.ready(t)
		if now := s.generation(t); now == was {
			t.Errorf("the rules are still of generation %s", was)
		}
		l.await(t, 75)
		d.stop(t)
		unchanged("after a rollback")
	}
	l.await(t, 75)
	l.stop(t)
	if strings.Contains(old.Err.Text(), "drifted") {
		t.Errorf("the old process had to repair:\n%s", old.log())
	}
	old.stop(t)
	s.n.asBefore(t, "after the old process's end")
}

// scrapedAt is the node as processes see it that serve their metrics elsewhere.
func (s *surge) scrapedAt(t *testing.T, addr string) *node {
	t.Helper()
	n := *s.n
	n.etc = t.TempDir()
	if err := os.CopyFS(n.etc, os.DirFS(s.n.etc)); err != nil {
		t.Fatal(err)
	}
	for _, file := range readFixture(t, "testdata/fixtures/addon-iptables.txtar").etc {
		n.write(t, "/"+file.Name, strings.ReplaceAll(string(file.Data), ":9253", addr))
	}
	return &n
}

// ours is the addresses, and the tables of a generation.
func (s *surge) ours(t *testing.T, generation string) string {
	t.Helper()
	return s.n.output(t, "ip", "-details", "addr") +
		s.n.output(t, "nft", "list", "table", "inet", "nodens") + s.n.output(t, "nft", "list", "table", "inet", "nodens-"+generation)
}

// TestSurgeOutOfOrder ends the old process while the new one starts, with a
// lameduck that is long enough for the start: no look-up fails. Those of the
// Service over TCP are left out: between the old one's rules and the new one's,
// kube-proxy carries them, and netsetup says that the new rules reset what it
// carries.
func TestSurgeOutOfOrder(t *testing.T) {
	s := newSurge(t)
	s.setLameduck(t, "2s")
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	l := s.load(t, 0)
	for range 3 {
		l.await(t, 75)
		d := s.n.launch(t, plain, s.args...)
		old.Signal(t, syscall.SIGTERM)
		d.ready(t)
		now := s.generation(t)
		old.ended(t)
		if g := s.generation(t); g != now {
			t.Errorf("after the old process's end the rules are of generation %s, want %s", g, now)
		}
		old = d
	}
	l.await(t, 75)
	l.stop(t)
	old.stop(t)
	s.n.asBefore(t, "after the last process's end")
}

// TestReplacementMeetsTeardown ends the old process, without a lameduck, at many
// moments of the new one's start: the host is the new one's in the end.
func TestReplacementMeetsTeardown(t *testing.T) {
	t.Parallel()
	s := newSurge(t)
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	for i := range 30 {
		d := s.n.launch(t, plain, s.args...)
		pause(t, time.Duration(i)*time.Millisecond)
		old.Signal(t, syscall.SIGTERM)
		d.ready(t)
		old.ended(t)
		s.converged(t)
		answersFrom(t, s.pod, localAddr, inside, clusterDNS)
		answersFrom(t, s.pod, serviceAddr, inside, clusterDNS)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
		old = d
	}
	old.stop(t)
	s.n.asBefore(t, "after the last process's end")
}

// pause varies what comes first; no outcome depends on it.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// converged waits until nodens status has nothing to say against the host: a
// repair is under way at most.
func (s *surge) converged(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.Patience)
	for {
		out, errs, status := s.n.command(append([]string{plain.Path(t), "status"}, s.args...)).Output(t)
		if status == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("nodens status: %d\n%s%s", status, out, errs)
		}
	}
}

// setLameduck gives the base Corefile's health directive a lameduck.
func (s *surge) setLameduck(t *testing.T, duration string) {
	t.Helper()
	f := readFixture(t, "testdata/fixtures/addon-iptables.txtar")
	const health = "health 169.254.20.10:8080"
	for _, file := range f.etc {
		s.n.write(t, "/"+file.Name, strings.Replace(string(file.Data), health, health+" {\n lameduck "+duration+"\n}", 1))
	}
}

// TestSurgePIDFile has old and new process name the same PID file: what is there
// after the old one's end is the new one's.
func TestSurgePIDFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP))
	args := local("-pidfile", "/etc/node-cache.pid")
	old := n.start(t, args...)
	first := n.readPID(t, "/etc/node-cache.pid")
	d := n.start(t, args...)
	second := n.readPID(t, "/etc/node-cache.pid")
	if first == second {
		t.Errorf("the new process left the PID file as it was: %s", first)
	}
	old.stop(t)
	if got := n.readPID(t, "/etc/node-cache.pid"); got != second {
		t.Errorf("after the old process's end the PID file has %q, want %s", got, second)
	}
	d.stop(t)
}

// readPID reads a PID file below /etc.
func (n *node) readPID(t *testing.T, seen string) string {
	t.Helper()
	b, err := os.ReadFile(n.path(seen))
	if err != nil {
		t.Errorf("PID file: %v", err)
	}
	return strings.TrimSpace(string(b))
}
