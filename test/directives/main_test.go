// Package directives runs nodens and CoreDNS side by side, a Corefile for each
// directive, and holds that both answer the same but for the differences that
// are listed with their reason.
package directives

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
	dir, err := os.MkdirTemp("", "nodens-directives-")
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
