// Package doctor provokes every finding of nodens doctor in network namespaces:
// a node, a pod behind it, and the servers of the cluster and of the outside.
package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// binDir holds the built programs. TestMain sets it once.
var binDir string

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-doctor-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

// nodens is the program, race-checked where that works.
var nodens = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "nodens")
	if lab.GoBuild(path, "../../cmd/nodens", "-race") == nil {
		return path, nil
	}
	return path, lab.GoBuild(path, "../../cmd/nodens") // no C compiler
})

func built(t *testing.T) string {
	t.Helper()
	path, err := nodens()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
