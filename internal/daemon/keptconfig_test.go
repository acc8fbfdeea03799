package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A worker with bad files uses the files and the kube-dns ConfigMap of the previous
// worker. It uses those of the node as soon as they are good.
func TestReadFirst(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(dir, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keeper := configKeeper{f}
	newWorker := func() *corefiles {
		return &corefiles{warn: func(err error) { t.Log(err) }, opts: &Options{
			Files: dir, Dir: "/", BaseCorefile: "/base", Corefile: "/none", KubeDNS: "/", DNSPort: 53, Getenv: func(string) string { return "" },
		}}
	}
	zones := func(cfg source) (all string) {
		for _, b := range cfg.Blocks {
			all += b.Zones[0].Name + " "
		}
		return all
	}

	write("base", "example.org {\n import *.part\n}\n")
	write("a.part", "whoami\n")
	write("stubDomains", `{"stub.example": ["192.0.2.1"]}`)
	c := newWorker()
	cfg, kept, err := c.readFirst(keeper)
	if err != nil || kept {
		t.Fatalf("first worker: kept %t, %v", kept, err)
	}
	write("stubDomains", "bad")
	if cfg, err = c.read(); err != nil { // the previous values stay in use
		t.Fatal(err)
	}
	if err := keeper.save(cfg.kept); err != nil {
		t.Fatal(err)
	}
	want := zones(cfg)
	if !strings.Contains(want, "stub.example.") {
		t.Fatalf("no stub domain in %q", want)
	}

	if cfg, kept, err = newWorker().readFirst(keeper); err != nil || kept || zones(cfg) != want {
		t.Errorf("same files: zones %q, kept %t, %v", zones(cfg), kept, err)
	}
	for _, bad := range []string{"a.part", "base"} {
		write(bad, "nonsense {\n")
		if cfg, kept, err = newWorker().readFirst(keeper); err != nil || !kept || zones(cfg) != want || !cfg.Blocks[0].Whoami {
			t.Fatalf("bad %s: zones %q, kept %t, %v", bad, zones(cfg), kept, err)
		}
	}
	if _, _, err := newWorker().readFirst(configKeeper{}); err == nil {
		t.Error("without a kept configuration: no error")
	}
	if err := f.Truncate(20); err != nil { // the worker died while it wrote
		t.Fatal(err)
	}
	if _, _, err := newWorker().readFirst(keeper); err == nil {
		t.Error("with half a kept configuration: no error")
	}
}
