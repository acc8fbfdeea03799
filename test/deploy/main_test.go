package deploy

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files again")

// Set by TestMain.
var (
	nodens string // path of the built daemon
	helm   string // path of Helm, built at the version in go.mod
)

// The repository, relative to this package.
const (
	root     = "../.."
	chart    = root + "/deploy/chart"
	examples = root + "/deploy/examples"
	pictures = root + "/docs/pictures"
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "nodens-deploy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	nodens = filepath.Join(dir, "nodens")
	// The same flags as make build, which share the build cache.
	if _, err := command(root, "go", "build", "-trimpath", "-o", nodens, "./cmd/nodens"); err != nil {
		return 0, err
	}
	// go tool -n builds the tool and prints its path.
	out, err := command(".", "go", "tool", "-n", "helm")
	if err != nil {
		return 0, err
	}
	helm = strings.TrimSpace(out)
	return m.Run(), nil
}

// command runs a program in dir and returns its standard output; its standard
// error is in the error.
func command(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	// Helm must not read the configuration of the user.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "HELM_NO_PLUGINS=1", "HELM_CONFIG_HOME=/nonexistent", "KUBECONFIG=/nonexistent")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, errs.String())
	}
	return string(out), nil
}

// skip skips the test, or fails it if CI is true.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("must not be skipped in CI: " + reason)
	}
	t.Skip(reason)
}

// needRoot skips the test unless it is root and has the commands.
func needRoot(t *testing.T, commands ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "needs root")
	}
	for _, c := range commands {
		if _, err := exec.LookPath(c); err != nil {
			skip(t, c+" is not installed; test/deps.sh lists the packages")
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
