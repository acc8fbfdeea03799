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

// surge is a node on which nodens is replaced repeatedly, as by a DaemonSet with
// maxSurge. Its arguments are those of the addon, with the local address and the
// Service's.
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
	s.n.addKubeProxy(t)
	s.n.migrateRequests(t)
	i := slices.Index(f.args, "-pidfile")
	s.args = append(slices.Delete(f.args, i, i+2), more...)
	return s
}

// migrateRequests makes the kernel move half-open connections of a closing socket to
// another socket of the address. By default it resets them; TestSurge of package
// test counts those.
func (n *node) migrateRequests(t *testing.T) {
	t.Helper()
	must(t, n.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0) }))
}

// load starts about 500 lookups a second, 300 of them by dig. serviceTCP is the
// number of those to the Service over TCP.
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

// generation returns the generation of the rules. The status must be OK.
func (s *surge) generation(t *testing.T) string {
	t.Helper()
	out, errs, status := s.n.command(append([]string{plain.Path(t), "status"}, s.args...)).Output(t)
	m := generation.FindStringSubmatch(out)
	if status != 0 || m == nil {
		t.Fatalf("nodens status: %d\n%s%s", status, out, errs)
	}
	return m[1]
}

// TestSurgeUpgrades replaces the process twenty times. No lookup may fail or take so
// long that a packet must have been lost.
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
		host := s.setup(t, now)
		l.wait(t, 75)
		old.stop(t)
		if g := s.generation(t); g != now {
			t.Errorf("after the end of the old process the rules are of generation %s, want %s", g, now)
		}
		if d := diff(host, s.setup(t, now)); d != "" {
			t.Errorf("the end of the old process changed the host:\n%s", d)
		}
		s.n.has(t, false, "nodens-"+was)
		l.wait(t, 75)
		old, was = d, now
	}
	l.stop(t)
	old.stop(t)
	s.n.wantRestored(t, "after the end of the last process")
}

// TestSurgeRollback ends newer processes while the old one serves: three whose start
// fails after they adopted link and addresses, and two that were ready and had
// adopted the rules too. The old one must get everything back and repair nothing,
// and no lookup may fail.
func TestSurgeRollback(t *testing.T) {
	s := newSurge(t)
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	was := s.generation(t)
	host := s.setup(t, was)
	unchanged := func(after string) {
		t.Helper()
		if d := diff(host, s.setup(t, was)); d != "" {
			t.Errorf("%s the host is not as the old process set it up:\n%s", after, d)
		}
	}
	s.n.Listen(t, "tcp", ":9254")
	failing := s.scrapedAt(t, ":9254")
	l := s.load(t, 20)
	for range 3 {
		l.wait(t, 75)
		d := failing.launch(t, plain, s.args...)
		if status := d.Wait(t); status == 0 || !strings.Contains(d.Err.Text(), ":9254") {
			t.Errorf("the start with port 9254 in use: status %d\n%s", status, d.log())
		}
		unchanged("after a failed start")
	}
	for range 2 {
		l.wait(t, 75)
		d := s.n.launch(t, plain, s.args...)
		d.ready(t)
		if now := s.generation(t); now == was {
			t.Errorf("the rules are still of generation %s", was)
		}
		l.wait(t, 75)
		d.stop(t)
		unchanged("after a rollback")
	}
	l.wait(t, 75)
	l.stop(t)
	if strings.Contains(old.Err.Text(), "drifted") {
		t.Errorf("the old process repaired something:\n%s", old.log())
	}
	old.stop(t)
	s.n.wantRestored(t, "after the end of the old process")
}

// scrapedAt returns the node with a Corefile that serves metrics at addr.
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

// setup is the addresses, and the tables of a generation.
func (s *surge) setup(t *testing.T, generation string) string {
	t.Helper()
	return s.n.output(t, "ip", "-details", "addr") +
		s.n.output(t, "nft", "list", "table", "inet", "nodens") + s.n.output(t, "nft", "list", "table", "inet", "nodens-"+generation)
}

// TestSurgeOutOfOrder ends the old process while the new one starts, with a lameduck
// that is long enough for the start. No lookup may fail. It does no TCP lookups to
// the Service: between the old rules and the new ones they go through kube-proxy,
// and the new rules reset such connections (see netsetup).
func TestSurgeOutOfOrder(t *testing.T) {
	s := newSurge(t)
	s.setLameduck(t, "2s")
	old := s.n.launch(t, plain, s.args...)
	old.ready(t)
	l := s.load(t, 0)
	for range 3 {
		l.wait(t, 75)
		d := s.n.launch(t, plain, s.args...)
		old.Signal(t, syscall.SIGTERM)
		d.ready(t)
		now := s.generation(t)
		old.ended(t)
		if g := s.generation(t); g != now {
			t.Errorf("after the end of the old process the rules are of generation %s, want %s", g, now)
		}
		old = d
	}
	l.wait(t, 75)
	l.stop(t)
	old.stop(t)
	s.n.wantRestored(t, "after the end of the last process")
}

// TestReplacementDuringTeardown ends the old process, without a lameduck, at many
// moments of the start of the new one, which must own the host in the end.
func TestReplacementDuringTeardown(t *testing.T) {
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
		s.waitConverged(t)
		answersFrom(t, s.pod, localAddr, inside, clusterDNS)
		answersFrom(t, s.pod, serviceAddr, inside, clusterDNS)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
		old = d
	}
	old.stop(t)
	s.n.wantRestored(t, "after the end of the last process")
}

// pause varies the order of events. No result depends on it.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// waitConverged waits until nodens status is OK: a repair may still run.
func (s *surge) waitConverged(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(lab.QueryTimeout)
	for {
		out, errs, status := s.n.command(append([]string{plain.Path(t), "status"}, s.args...)).Output(t)
		if status == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("nodens status: %d\n%s%s", status, out, errs)
		}
	}
}

// setLameduck adds a lameduck to the health directive of the base Corefile.
func (s *surge) setLameduck(t *testing.T, duration string) {
	t.Helper()
	f := readFixture(t, "testdata/fixtures/addon-iptables.txtar")
	const health = "health 169.254.20.10:8080"
	for _, file := range f.etc {
		s.n.write(t, "/"+file.Name, strings.Replace(string(file.Data), health, health+" {\n lameduck "+duration+"\n}", 1))
	}
}

// TestSurgePIDFile: the old and the new process have the same PID file, which must
// have the new one's PID after the end of the old one.
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
		t.Errorf("the new process did not change the PID file: %s", first)
	}
	old.stop(t)
	if got := n.readPID(t, "/etc/node-cache.pid"); got != second {
		t.Errorf("after the end of the old process the PID file has %q, want %s", got, second)
	}
	d.stop(t)
}

// readPID reads a PID file below /etc.
func (n *node) readPID(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(n.path(file))
	if err != nil {
		t.Errorf("PID file: %v", err)
	}
	return strings.TrimSpace(string(b))
}
