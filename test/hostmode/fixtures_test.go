package hostmode

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/nodens-dns/nodens/internal/lab"
)

// fixture is the way in which one distribution starts node-cache.
type fixture struct {
	name   string
	args   []string
	env    []string
	serves []string // IP:port
	health string   // IP:port
	etc    []txtar.File
}

// readFixture reads a file of testdata/fixtures: sections args, env, serves and
// health, with one item per line, and files below etc/.
func readFixture(t *testing.T, path string) fixture {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{name: strings.TrimSuffix(filepath.Base(path), ".txtar")}
	for _, file := range a.Files {
		items := strings.Fields(string(file.Data))
		switch {
		case file.Name == "args":
			f.args = items
		case file.Name == "env":
			f.env = items
		case file.Name == "serves":
			f.serves = items
		case file.Name == "health":
			f.health = items[0]
		case strings.HasPrefix(file.Name, "etc/"):
			f.etc = append(f.etc, file)
		default:
			t.Fatalf("%s: unknown section %q", path, file.Name)
		}
	}
	return f
}

// newNode makes the node for the fixture.
func (f fixture) newNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.env = append(f.env, "MY_HOST_IP="+lab.NodeIP)
	for _, file := range f.etc {
		n.write(t, "/"+file.Name, string(file.Data))
	}
	return n
}

// TestFixtures starts each fixture unchanged. It must answer on all its addresses
// from the server of each zone, and restore the host unless -skipteardown is set.
func TestFixtures(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/fixtures/*.txtar")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d fixtures, error %v", len(paths), err)
	}
	for _, path := range paths {
		f := readFixture(t, path)
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.test(t)
		})
	}
}

func (f fixture) test(t *testing.T) {
	n := f.newNode(t)
	f.check(t, n)
	d := n.start(t, f.args...)
	for _, server := range f.serves {
		n.answers(t, server, inside, clusterDNS)
		n.answers(t, server, outside, outsideDNS)
	}
	n.over(t, clusterDNS, inside, "tcp")
	if status, body := n.Get(t, f.health, "/health"); status != http.StatusOK {
		t.Errorf("/health: %d %s", status, body)
	}
	f.special(t, n)
	if out, errs, status := n.nodens(t, append([]string{"status"}, f.args...)...); status != 0 {
		t.Errorf("nodens status: %d\n%s%s", status, out, errs)
	}
	d.stop(t)
	if slices.Contains(f.args, "-skipteardown") {
		n.has(t, true, "inet 169.254.25.10/32")
		n.output(t, append([]string{raceChecked.Path(t), "teardown"}, f.args...)...)
	}
	n.wantRestored(t, "after SIGTERM")
}

// TestBothCachesOfKubespray: the two processes share the address permanently, and
// one of them is enough.
func TestBothCachesOfKubespray(t *testing.T) {
	t.Parallel()
	first, second := readFixture(t, "testdata/fixtures/kubespray.txtar"), readFixture(t, "testdata/fixtures/kubespray-secondary.txtar")
	first.etc = append(first.etc, second.etc...)
	n := first.newNode(t)
	first.args = append(first.args, "-skipteardown")
	one, other := n.start(t, first.args...), n.start(t, second.args...)
	for range 2 {
		n.answers(t, first.serves[0], inside, clusterDNS)
		n.Get(t, first.health, "/health")
		n.Get(t, second.health, "/health")
		one.Kill()
		n.answers(t, first.serves[0], outside, outsideDNS)
		if out, errs, status := n.nodens(t, append([]string{"status"}, first.args...)...); status != 0 {
			t.Errorf("nodens status with one process: %d\n%s%s", status, out, errs)
		}
		one, other = other, n.start(t, one.args...)
	}
	one.stop(t)
	n.answers(t, first.serves[0], outside, outsideDNS)
	other.stop(t)
	n.output(t, append([]string{raceChecked.Path(t), "teardown"}, first.args...)...)
	n.wantRestored(t, "after nodens teardown")
}

// special checks what only one fixture has.
func (f fixture) special(t *testing.T, n *node) {
	t.Helper()
	switch f.name {
	case "addon-ipvs":
		n.answers(t, f.serves[0], stubName, stubDNS)
	case "kubespray":
		n.answers(t, f.serves[0], "from-hosts.example.net.", "192.0.2.7")
		n.over(t, outsideDNS, outside, "tcp")
		n.Scrape(t, lab.NodeIP+":9253")
	case "kops", "cilium":
		n.has(t, false, "table inet nodens")
	}
}

// check compares the output of nodens check with the golden file, which must be
// reviewed after -update has written it.
func (f fixture) check(t *testing.T, n *node) {
	t.Helper()
	out, errs, status := n.nodens(t, append([]string{"check"}, f.args...)...)
	if status != 0 || errs != "" {
		t.Fatalf("nodens check: status %d\n%s", status, errs)
	}
	golden := filepath.Join("testdata/fixtures", f.name+".golden")
	if *update {
		lab.WriteFile(t, golden, out)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := diff(string(want), out); d != "" || string(want) != out {
		t.Errorf("nodens check and %s differ:\n%s", golden, d)
	}
	n.wantRestored(t, "after nodens check")
}

// TestUnsupportedDirective: check and the start refuse a Corefile with a directive
// that nodens does not support, and name the line.
func TestUnsupportedDirective(t *testing.T) {
	t.Parallel()
	f := readFixture(t, "testdata/fixtures/deliveryhero.txtar")
	n := f.newNode(t)
	for _, file := range f.etc {
		n.write(t, "/"+file.Name, strings.ReplaceAll(string(file.Data), "    loop\n", "    loop\n    autopath @kubernetes\n"))
	}
	_, errs, status := n.nodens(t, append([]string{"check"}, f.args...)...)
	want := basePath + ":11: autopath: "
	if status == 0 || !strings.Contains(errs, want) {
		t.Errorf("check: status %d, %q, want %q", status, errs, want)
	}
	if got := n.refused(t, f.args...); !strings.Contains(got, want) {
		t.Errorf("start: %q, want %q", got, want)
	}
}
