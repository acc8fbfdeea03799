package lab

import (
	"os"
	"os/exec"
	"testing"
)

// Skip skips the test, or fails it if CI=true says that everything must run.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal("skipped in CI:  " + reason)
	}
	t.Skip(reason)
}

// NeedTools skips the test unless all the commands are installed.
func NeedTools(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			Skip(t, n+" is not installed; test/deps.sh lists the packages")
		}
	}
}

// NeedRoot skips the test unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, "needs root to make network namespaces")
	}
}
