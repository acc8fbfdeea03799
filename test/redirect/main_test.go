// Package redirect drives the built nodens where pods' sockets are redirected to
// it, on a node whose CNI routes as Cilium does.
package redirect

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// binDir holds the built program. TestMain sets it once.
var binDir string

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-redirect-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

// release is built as releases are: only then can it give up privileges.
var release = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "nodens-release")
	cmd := exec.Command("go", "build", "-o", path, "../../cmd/nodens")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

// nodens is race-checked where that works.
var nodens = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binDir, "nodens")
	err := lab.GoBuild(path, "../../cmd/nodens", "-race")
	if err != nil { // no C compiler
		err = lab.GoBuild(path, "../../cmd/nodens")
	}
	return path, err
})
