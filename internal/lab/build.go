package lab

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// daemonPackage is what Nodens builds; its path holds anywhere in the module.
const daemonPackage = "github.com/nodens-dns/nodens/cmd/nodens"

// programs is the folder of what Programs build. Main sets it once.
var programs string

// Main runs the tests of m with a folder for the Programs that they build,
// removes it, and returns the exit status. In a process that GoLookup describes it
// looks up names instead.
func Main(m *testing.M) int {
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

// Program is built when a test first asks for its Path, once for all tests of a
// package whose TestMain calls Main.
type Program struct {
	built func() (string, error)
}

// newProgram makes a Program of the given name; build puts it at path.
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

// Path is where the program is, built now if it is not yet.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	path, err := p.built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Nodens is the daemon, built with flags of go build.
func Nodens(flags ...string) *Program {
	return newProgram("nodens", func(path string) error { return goBuild(path, nil, flags...) })
}

// ReleaseNodens is the daemon built as releases are, without cgo: only then can
// it give up privileges.
func ReleaseNodens() *Program {
	return newProgram("nodens", func(path string) error { return goBuild(path, []string{"CGO_ENABLED=0"}) })
}

// RaceNodens is the daemon, race-checked where that works: where there is no C
// compiler, or the race runtime does not run, it is a plain one.
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

//go:embed testdata/*.c
var sources embed.FS

// Glibc is a C program of testdata, such as "client", with glibc.
func Glibc(name string) *Program { return cProgram(name, "gcc") }

// Musl is the same with musl, statically linked.
func Musl(name string) *Program { return cProgram(name, "musl-gcc", "-static") }

func cProgram(name, compiler string, flags ...string) *Program {
	return newProgram(name, func(path string) error {
		source, err := sources.ReadFile("testdata/" + name + ".c")
		if err != nil {
			return err
		}
		cmd := exec.Command(compiler, append(flags, "-pthread", "-Wall", "-O1", "-o", path, "-x", "c", "-")...)
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
