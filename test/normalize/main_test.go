// Package normalize shows the normalize directive of the built nodens to real
// stub resolvers: musl, glibc, Go and Node in a pod's namespace, with real and
// scripted resolvers behind.
package normalize

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// lookupsEnv makes the test binary a client that looks up the names which the
// variable holds, with Go's own resolver and the resolv.conf that it finds.
const lookupsEnv = "NODENS_TEST_LOOKUPS"

// binDir holds the built programs. TestMain sets it once.
var binDir string

func TestMain(m *testing.M) {
	if names, ok := os.LookupEnv(lookupsEnv); ok {
		goLookups(strings.Fields(names))
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-normalize-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

// The program under test and the clients, each built when first needed.
var (
	buildPlain = sync.OnceValues(func() (string, error) { return goBuild("nodens") })
	buildRace  = sync.OnceValues(func() (string, error) {
		path, err := goBuild("nodens-race", "-race")
		if err == nil {
			err = exec.Command(path, "version").Run()
		}
		if err != nil { // no C compiler, or the race runtime does not work here
			return buildPlain()
		}
		return path, nil
	})
	buildGlibc = sync.OnceValues(func() (string, error) { return compile("lookups-glibc", "gcc") })
	buildMusl  = sync.OnceValues(func() (string, error) { return compile("lookups-musl", "musl-gcc", "-static") })
)

func goBuild(name string, flags ...string) (string, error) {
	path := filepath.Join(binDir, name)
	return path, lab.GoBuild(path, "../../cmd/nodens", flags...)
}

func compile(name, compiler string, flags ...string) (string, error) {
	path := filepath.Join(binDir, name)
	return path, lab.Compile(path, "testdata/lookups.c", compiler, flags...)
}

// built is the path of a program, built now if it is not yet.
func built(t testing.TB, build func() (string, error)) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
