package lab

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// Daemon is a running nodens.
type Daemon struct {
	*Process
	Netns *Netns
	Conf  string // path of its Corefile
}

// DaemonOptions say how to start nodens.
type DaemonOptions struct {
	Binary   string
	Netns    *Netns
	Corefile string   // its text; written to a file unless Conf is set
	Conf     string   // path of a Corefile that the test manages itself
	Args     []string // besides -conf
	Env      []string // on top of the environment
	Binds    map[string]string
	Cgroup   string // see Command
}

// StartDaemon starts nodens, waits until it says that it listens, and holds it
// at the end of the test to have ended on SIGTERM with status 0, without a
// panic or a data race.
func StartDaemon(t testing.TB, o DaemonOptions) *Daemon {
	t.Helper()
	if o.Conf == "" {
		o.Conf = WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), o.Corefile)
	}
	args := append([]string{o.Binary, "-conf", o.Conf}, o.Args...)
	d := &Daemon{Netns: o.Netns, Conf: o.Conf}
	d.Process = Command{Netns: o.Netns, Args: args, Binds: o.Binds, Env: o.Env, Cgroup: o.Cgroup}.Start(t)
	t.Cleanup(func() { d.finish(t) })
	d.Out.WaitFor(t, 0, ` listens on `)
	return d
}

var faults = regexp.MustCompile(`panic|DATA RACE|fatal error|goroutine \d+ \[`)

// finish ends the daemon, if the test has not, and judges how it went.
func (d *Daemon) finish(t testing.TB) {
	t.Helper()
	select {
	case <-d.done:
	default:
		d.Signal(t, syscall.SIGTERM)
		if status := d.Wait(t); status != 0 {
			t.Errorf("nodens ended with status %d after SIGTERM", status)
		}
	}
	d.CheckLog(t)
	if t.Failed() {
		t.Logf("log of nodens:\n%s", tail(d.Err.Text(), 60))
	}
}

// CheckLog fails the test if the log tells of a panic or a data race.
func (d *Daemon) CheckLog(t testing.TB) {
	t.Helper()
	if s := faults.FindString(d.Err.Text()); s != "" {
		t.Errorf("the log has %q:\n%s", s, tail(d.Err.Text(), 120))
	}
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// WriteFile writes text to path and returns path.
func WriteFile(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// ReplaceFile writes text beside path and renames it into place.
func ReplaceFile(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
