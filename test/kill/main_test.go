package kill

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// envClient makes the test's binary a client, see goClient.
const envClient = "NODENS_KILL_TEST_CLIENT"

var (
	rounds = flag.Int("rounds", 2, "how often every fault is tried")
	only   = flag.String("fault", "", "the one fault to try")

	// binDir holds the built programs. TestMain sets it once.
	binDir string
)

func TestMain(m *testing.M) {
	if os.Getenv(envClient) != "" {
		goClient()
	}
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-kill-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

// The programs, each built when first needed. nodens is as quick as in life.
var (
	nodens = sync.OnceValues(func() (string, error) {
		path := filepath.Join(binDir, "nodens")
		return path, lab.GoBuild(path, "../../cmd/nodens")
	})
	glibcClient = sync.OnceValues(func() (string, error) { return compile("glibc", "gcc") })
	muslClient  = sync.OnceValues(func() (string, error) { return compile("musl", "musl-gcc", "-static") })
)

func compile(name, compiler string, flags ...string) (string, error) {
	path := filepath.Join(binDir, name)
	return path, lab.Compile(path, "testdata/client.c", compiler, append(flags, "-pthread")...)
}

// built is the path of a program, built now if it is not yet.
func built(t *testing.T, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
