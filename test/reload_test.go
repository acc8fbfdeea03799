package test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	reloads     = 100
	udpLoad     = 6 // clients
	tcpLoad     = 3
	leastAsked  = 10 * reloads // queries; with fewer there was no load
	extraIP     = "169.254.20.12"
	extraAnswer = "192.0.2.2"
)

// TestReloadsUnderLoad reloads a hundred times under load, with changes of zones,
// cache and addresses. It reloads by signal, by an edit in place, by a rename and by
// the symlink swap of a mounted ConfigMap. Clients send each query once. None may be
// lost or answered wrong.
func TestReloadsUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.node.AddAddrs(t, "lo", extraIP+"/32")
	startHashed(t, c)
	mount := newConfigMap(t, corefileVariant(0))
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: buildRace.Path(t), Netns: c.node, Conf: mount.path()})

	load := startLoad(t, c, udpLoad, tcpLoad, 20)
	for i := 1; i <= reloads; i++ {
		if i == reloads/2 {
			badReload(t, c, d, mount, i)
		}
		mark := d.Err.Mark()
		why := mount.change(t, d, i, corefileVariant(i))
		d.Err.WaitFor(t, mark, `msg=reloaded .*reason="?`+why)
		checkVariant(t, c, i)
	}
	asked := load.stop(t, 0)
	if asked < leastAsked {
		t.Errorf("only %d queries", asked)
	}
	t.Logf("%d queries during %d reloads", asked, reloads)
}

// startHashed starts the upstream that derives the address from the name.
func startHashed(t *testing.T, c *cluster) {
	t.Helper()
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		return lab.Reply(q, name+" 30 IN A "+hashed(name))
	})
}

// hashed is the address of a name, in 10.0.0.0/8.
func hashed(name string) string {
	h := sha256.Sum256([]byte(dns.CanonicalName(name)))
	return fmt.Sprintf("10.%d.%d.%d", h[0], h[1], h[2])
}

// corefileVariant is the i-th configuration. Its zones, cache and addresses
// change at different intervals; the zone "." stays. After a reload by signal the
// file is not watched, so that each change causes one reload.
func corefileVariant(i int) string {
	bind := localIP
	if hasExtraBind(i) {
		bind += " " + extraIP
	}
	follow := "reload 1m" // longer than any timeout: changes must be noticed at once
	if bySignal(i + 1) {
		follow = ""
	}
	text := fmt.Sprintf(`# variant %d
	. {
		errors
		%s
		%s
		bind %s
		forward . 10.1.1.2
		%s
	}
	`, i, []string{"cache 30", "cache {\n success 100 30\n denial 100\n }", "", "cache 5"}[i%4], follow, bind, admin)
	if hasExtraZone(i) {
		text += "extra.example {\n bind " + localIP + "\n hosts {\n" + extraAnswer + " www.extra.example\n }\n}\n"
	}
	return text
}

func bySignal(i int) bool     { return i%4 == 3 }
func hasExtraBind(i int) bool { return i%3 == 1 }
func hasExtraZone(i int) bool { return i%5 > 2 }

// checkVariant expects that the i-th configuration is in use.
func checkVariant(t *testing.T, c *cluster, i int) {
	t.Helper()
	const name = "www.extra.example."
	want := hashed(name)
	if hasExtraZone(i) {
		want = extraAnswer
	}
	r := c.pod.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA))
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{want}) {
		t.Errorf("variant %d: %s %v, want %s", i, dns.RcodeToString[r.Rcode], got, want)
	}
	if hasExtraBind(i) {
		r := c.pod.Ask(t, "udp", extraIP+":53", lab.Query("extra-bind.example.", dns.TypeA))
		if got := lab.Data(r, dns.TypeA); len(got) != 1 {
			t.Errorf("variant %d: %s %v on the additional address", i, dns.RcodeToString[r.Rcode], got)
		}
	}
}

// badReload writes a Corefile with an error. The previous configuration stays in
// use, the error has the line, and the metric reports it until the next good
// reload.
func badReload(t *testing.T, c *cluster, d *lab.Daemon, mount *configMap, i int) {
	t.Helper()
	const ok = "nodens_config_last_reload_successful"
	before, _ := c.node.Scrape(t, metrics).Sum("coredns_reload_failed_total")
	mark := d.Err.Mark()
	mount.swap(t, ". {\n    errors\n    nonsense\n}\n")
	line := d.Err.WaitFor(t, mark, `reload failed`)
	if want := mount.path() + ":3: nonsense: "; !strings.Contains(line, want) {
		t.Errorf("the log line lacks %s\n%s", want, line)
	}
	c.node.WaitForMetric(t, metrics, 0, ok)
	if after, _ := c.node.Scrape(t, metrics).Sum("coredns_reload_failed_total"); after != before+1 {
		t.Errorf("coredns_reload_failed_total changed from %v to %v", before, after)
	}
	checkVariant(t, c, i-1)

	mark = d.Err.Mark()
	mount.swap(t, corefileVariant(i-1))
	d.Err.WaitFor(t, mark, `msg=reloaded`)
	c.node.WaitForMetric(t, metrics, 1, ok)
}

// configMap is a directory as the kubelet mounts a ConfigMap: the file is a
// symlink through ..data, which is a symlink to the directory of the current
// version.
type configMap struct {
	dir     string
	version int
}

func newConfigMap(t *testing.T, text string) *configMap {
	t.Helper()
	m := &configMap{dir: t.TempDir()}
	m.swap(t, text)
	if err := os.Symlink("..data/Corefile", m.path()); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *configMap) path() string { return filepath.Join(m.dir, "Corefile") }

// swap replaces the content with text as the kubelet does.
func (m *configMap) swap(t *testing.T, text string) {
	t.Helper()
	old := filepath.Join(m.dir, fmt.Sprintf("..version%d", m.version))
	m.version++
	version := fmt.Sprintf("..version%d", m.version)
	if err := os.Mkdir(filepath.Join(m.dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	lab.WriteFile(t, filepath.Join(m.dir, version, "Corefile"), text)
	link := filepath.Join(m.dir, "..data")
	if err := os.Symlink(version, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(old); err != nil {
		t.Fatal(err)
	}
}

// real is the file that the symlinks lead to.
func (m *configMap) real(t *testing.T) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(m.path())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// change replaces the configuration with text in the i-th way. It returns the
// reason that nodens logs for the reload.
func (m *configMap) change(t *testing.T, d *lab.Daemon, i int, text string) string {
	t.Helper()
	switch {
	case bySignal(i):
		lab.WriteFile(t, m.real(t), text)
		d.Signal(t, []os.Signal{syscall.SIGHUP, syscall.SIGUSR1}[i/4%2])
		return "(hangup|user defined signal 1)"
	case i%4 == 0:
		lab.ReplaceFile(t, m.real(t), text)
	case i%4 == 1:
		m.swap(t, text)
	default:
		lab.WriteFile(t, m.real(t), text)
	}
	return "file changed"
}
