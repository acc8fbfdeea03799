package test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// replaceByFIFO renames a FIFO to path. It stays open for writing, so that a read
// would wait, too.
func replaceByFIFO(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path+".new", 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path+".new", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestIrregularFiles replaces each file that nodens reads again by a FIFO, a
// directory and 3 MB of garbage. nodens names the file, continues to serve, reloads
// when the file is valid again, and ends on SIGTERM.
func TestIrregularFiles(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	kube := file("kube-dns")
	if err := os.Mkdir(kube, 0o755); err != nil {
		t.Fatal(err)
	}
	good := map[string]string{
		file("Corefile"): ". {\n bind " + localIP + "\n reload 2s\n import " + file("import") + "\n" + admin +
			" hosts " + file("hosts") + " {\n fallthrough\n reload 1s\n }\n forward . " + file("resolv.conf") + "\n}",
		file("import"):                             "errors\n",
		file("hosts"):                              "192.0.2.9 known.example.org\n",
		file("resolv.conf"):                        "nameserver 10.1.1.2\n",
		filepath.Join(kube, "stubDomains"):         "{}",
		filepath.Join(kube, "upstreamNameservers"): "[]",
	}
	for path, text := range good {
		lab.WriteFile(t, path, text)
	}
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: buildRace.Path(t), Netns: c.node, Conf: file("Corefile"),
		Args: []string{"-basecorefile", file("Corefile"), "-kubednscm", kube}})
	serves := func(when string) {
		t.Helper()
		for name, want := range map[string]string{"www.example.org.": "192.0.2.1", "known.example.org.": "192.0.2.9"} {
			r := c.pod.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA))
			if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s %s %v, want %s", when, name, dns.RcodeToString[r.Rcode], got, want)
			}
		}
	}
	serves("at first")
	garbage := strings.Repeat("\x01{ \x00}\"", 3<<20/6)
	for path, text := range good {
		for kind, replace := range map[string]func(){
			"FIFO":      func() { replaceByFIFO(t, path) },
			"directory": func() { makeDirectory(t, path) },
			"garbage":   func() { lab.ReplaceFile(t, path, garbage) },
		} {
			if kind != "FIFO" && path == file("hosts") {
				continue // a hosts file that is good again is not logged, and garbage is ignored
			}
			mark := d.Err.Mark()
			replace()
			d.Err.WaitFor(t, mark, `level=ERROR .*`+filepath.Base(path))
			serves(filepath.Base(path) + " is a " + kind)
			mark = d.Err.Mark()
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			lab.ReplaceFile(t, path, text)
			if path != file("hosts") {
				d.Err.WaitFor(t, mark, `msg=(reloaded|"upstreams changed")`)
			}
			serves(filepath.Base(path) + " is a file again")
		}
	}
	mark := d.Err.Mark()
	replaceByFIFO(t, file("Corefile"))
	d.Err.WaitFor(t, mark, `reload failed`)
}

func makeDirectory(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestHostResolvConfIsFIFO starts nodens on a host whose /etc/resolv.conf is a FIFO.
func TestHostResolvConfIsFIFO(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	fifo := lab.WriteFile(t, filepath.Join(t.TempDir(), "fifo"), "")
	replaceByFIFO(t, fifo)
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: buildRace.Path(t), Netns: c.node, Binds: map[string]string{"/etc/resolv.conf": fifo},
		Corefile: ". {\n bind " + localIP + "\n normalize\n forward . 10.1.1.2\n}"})
	d.Err.WaitFor(t, 0, `normalize has no search list.*/etc/resolv.conf: not a regular file`)
	if r := c.pod.Ask(t, "udp", localAddr, lab.Query("www.example.org.", dns.TypeA)); len(r.Answer) != 1 {
		t.Errorf("%v", r)
	}
	mark := d.Err.Mark()
	d.Signal(t, syscall.SIGHUP)
	d.Err.WaitFor(t, mark, `msg=reloaded`)
}
