package hostmode

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// holdEnv makes the test binary a stranger that holds the DNS port of every
// address, without SO_REUSEPORT.
const holdEnv = "NODENS_TEST_HOLD"

var (
	update = flag.Bool("update", false, "write what nodens check prints to the golden files")

	// binDir holds the built programs. TestMain sets it once.
	binDir string
)

func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(holdEnv); ok {
		hold()
	}
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nodens-hostmode-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binDir = dir
	return m.Run()
}

// hold takes 0.0.0.0:53, prints its process ID, and stays.
func hold() {
	c, err := net.ListenPacket("udp4", "0.0.0.0:53")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holding", os.Getpid())
	_, _, _ = c.ReadFrom(make([]byte, 1))
	os.Exit(0)
}

// The programs, each built when first needed. nodens is race-checked where that
// works, except where it has to be as quick as in life.
var (
	raceChecked = sync.OnceValues(func() (string, error) {
		path, err := goBuild("nodens-race", "-race")
		if err == nil {
			err = run(path, "version")
		}
		if err != nil { // no C compiler, or the race runtime does not work here
			return goBuild("nodens-norace")
		}
		return path, nil
	})
	plain       = sync.OnceValues(func() (string, error) { return goBuild("nodens") })
	glibcClient = sync.OnceValues(func() (string, error) { return compile("client-glibc", "gcc") })
	muslClient  = sync.OnceValues(func() (string, error) { return compile("client-musl", "musl-gcc", "-static") })
)

func goBuild(name string, flags ...string) (string, error) {
	path := filepath.Join(binDir, name)
	args := append([]string{"build", "-o", path}, flags...)
	return path, run("go", append(args, "../../cmd/nodens")...)
}

func compile(name, compiler string, flags ...string) (string, error) {
	path := filepath.Join(binDir, name)
	return path, run(compiler, append(flags, "-Wall", "-O1", "-pthread", "-o", path, "testdata/client.c")...)
}

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
	}
	return nil
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
