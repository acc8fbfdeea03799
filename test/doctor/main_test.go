// Package doctor provokes every finding of nodens doctor in network namespaces:
// a node, a pod behind it, and the servers of the cluster and of the outside.
package doctor

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// binDir holds the built programs. TestMain sets it once.
var binDir string

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	flag.Parse()
	if err := moreAtOnce(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

// moreAtOnce lets more tests run at once than there are processors: most of the
// time doctor waits for replies that do not come.
func moreAtOnce() error {
	const atOnce = 5
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(atOnce))
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
