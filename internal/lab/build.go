package lab

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// daemonPackage is the package that Nodens builds.
const daemonPackage = "github.com/nodens-dns/nodens/cmd/nodens"

// programs is the directory of the built Programs. Main sets it once.
var programs string

// Main runs the tests of m with a directory for the Programs that they build,
// removes it, and returns the exit status. In a process that GoLookup or GoClient
// describes it looks up names instead.
func Main(m *testing.M) int {
	if args, ok := os.LookupEnv(envClient); ok {
		goClient(strings.Fields(args))
		return 0
	}
	if names, ok := os.LookupEnv(envLookup); ok {
		goLookups(strings.Fields(names))
		return 0
	}
	dir, err := os.MkdirTemp("", "nodens-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	return m.Run()
}

// Program is built at the first call of Path, once for all tests of a package
// whose TestMain calls Main.
type Program struct {
	built func() (string, error)
}

// newProgram makes a Program with the given name; build writes it to path.
func newProgram(name string, build func(path string) error) *Program {
	return &Program{sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp(programs, "")
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, name)
		return path, build(path)
	})}
}

// Path builds the program if needed and returns its path.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	path, err := p.built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Nodens is the daemon, built with the given flags of go build.
//
// NODENS_TEST_BINARY in the environment names a daemon to use instead, where there
// is no Go.
func Nodens(flags ...string) *Program {
	if path := os.Getenv("NODENS_TEST_BINARY"); path != "" {
		return &Program{func() (string, error) { return path, nil }}
	}
	return newProgram("nodens", func(path string) error { return goBuild(path, nil, flags...) })
}

// ReleaseNodens is the daemon built as releases are, without cgo. Only this build
// drops privileges.
func ReleaseNodens() *Program { return ReleaseNodensFor(runtime.GOARCH) }

// ReleaseNodensFor is ReleaseNodens for a GOARCH.
func ReleaseNodensFor(arch string) *Program {
	return newProgram("nodens", func(path string) error {
		return goBuild(path, []string{"CGO_ENABLED=0", "GOARCH=" + arch})
	})
}

// RaceNodens is the daemon with the race detector. Without a C compiler, or if
// the race runtime does not run, it is a plain build.
func RaceNodens() *Program {
	return newProgram("nodens", func(path string) error {
		err := goBuild(path, nil, "-race")
		if err == nil {
			err = run(exec.Command(path, "version"))
		}
		if err != nil {
			return goBuild(path, nil)
		}
		return nil
	})
}

// GoProgram is the program of a package of this module.
func GoProgram(name, pkg string) *Program {
	return newProgram(name, func(path string) error { return run(exec.Command("go", "build", "-o", path, pkg)) })
}

//go:embed testdata/*.c
var sources embed.FS

// Glibc is a C program of testdata, such as "client", linked with glibc.
func Glibc(name string) *Program { return cProgram(name, "gcc") }

// Musl is the same program, linked statically with musl.
func Musl(name string) *Program { return cProgram(name, "musl-gcc", "-static") }

func cProgram(name, compiler string, flags ...string) *Program {
	return newProgram(name, func(path string) error {
		source, err := sources.ReadFile("testdata/" + name + ".c")
		if err != nil {
			return err
		}
		cmd := exec.Command(compiler, append(flags, "-pthread", "-Wall", "-O1", "-o", path, "-x", "c", "-", "-lresolv")...)
		cmd.Stdin = bytes.NewReader(source)
		return run(cmd)
	})
}

func goBuild(path string, env []string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", path}, flags...), daemonPackage)...)
	cmd.Env = append(os.Environ(), env...)
	return run(cmd)
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}
