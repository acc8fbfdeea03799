// Package corefiles runs nodens and CoreDNS side by side with Corefiles of the
// shapes that installers of node-local DNS caches write, and compares what
// they answer.
package corefiles

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// binDir holds the built program. TestMain sets it once.
var binDir string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-corefiles-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

var buildDaemon = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "nodens")
	return path, lab.GoBuild(path, "../../cmd/nodens", "-race")
})
