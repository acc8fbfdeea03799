package lab

import (
	"flag"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// Parallel runs n tests at a time unless -parallel is given. TestMain calls it
// where tests mostly wait, for a timeout or a reply that does not come.
func Parallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // a number is always valid
	}
}

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
