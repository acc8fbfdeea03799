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

// DaemonOptions are the options of StartDaemon.
type DaemonOptions struct {
	Binary   string
	Netns    *Netns
	Corefile string   // text; written to a file unless Conf is set
	Conf     string   // path of a Corefile that the test manages itself
	Args     []string // besides -conf
	Env      []string // added to the environment
	Binds    map[string]string
	Cgroup   string // see Command
}

// StartDaemon starts nodens and waits until it listens. At the end of the test it
// sends SIGTERM and expects status 0 and no panic or data race.
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

// finish ends the daemon, if it is still running, and checks its status and log.
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

// CheckLog fails the test if the log has a panic or a data race.
func (d *Daemon) CheckLog(t testing.TB) {
	t.Helper()
	if s := faults.FindString(d.Err.Text()); s != "" {
		t.Errorf("the log contains %q:\n%s", s, tail(d.Err.Text(), 120))
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

// WriteScript writes a shell script to a new executable and returns its path. It holds
// ForkLock: a process forked meanwhile would keep the file open for writing until its
// execve, and the script could not start (ETXTBSY).
func WriteScript(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// ReplaceFile writes text to a new file and renames it to path.
func ReplaceFile(t testing.TB, path, text string) {
	t.Helper()
	WriteFile(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
