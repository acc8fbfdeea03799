package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// errSeveral says that daemons with different command lines run here.
var errSeveral = errors.New("several nodens run here, with different flags: give those of the one that is meant")

// running is a daemon that runs beside this process, and so sees the same files
// and network.
type running struct {
	args []string // without the program
	env  map[string]string
}

// findRunning looks for daemons in the namespaces of this process. ok is false
// if there is none.
func findRunning(procfs string) (d running, ok bool, err error) {
	dirs, _ := filepath.Glob(filepath.Join(procfs, "[0-9]*")) // the pattern is valid
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) || !beside(procfs, dir) {
			continue
		}
		args, isDaemon := daemonArgs(dir)
		if !isDaemon {
			continue
		}
		if ok && !slices.Equal(args, d.args) {
			return running{}, false, errSeveral
		}
		d, ok = running{args, environ(dir)}, true
	}
	return d, ok, nil
}

// beside tells whether a process has our files and our network.
func beside(procfs, dir string) bool {
	for _, ns := range []string{"ns/mnt", "ns/net"} {
		theirs, err := os.Readlink(filepath.Join(dir, ns))
		ours, ourErr := os.Readlink(filepath.Join(procfs, "thread-self", ns))
		if err != nil || ourErr != nil || theirs != ours {
			return false
		}
	}
	return true
}

// daemonArgs is the command line of a process that is a daemon of ours, and not
// one of its commands.
func daemonArgs(dir string) (args []string, ok bool) {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	line, lineErr := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || lineErr != nil || !strings.HasPrefix(string(comm), "nodens") {
		return nil, false
	}
	all := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if len(all) < 2 || !strings.HasPrefix(all[1], "-") {
		return nil, false
	}
	return all[1:], true
}

func environ(dir string) map[string]string {
	b, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return nil
	}
	env := make(map[string]string)
	for _, kv := range strings.Split(string(b), "\x00") {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env
}

// adopt gives doctor the flags and the environment of the daemon that runs
// beside it, unless it has been given flags of a daemon.
func (d *doctorFlags) adopt(e *env, own []string) (*doctorFlags, error) {
	r, ok, err := findRunning("/proc")
	if err != nil {
		return d, err
	}
	if !ok {
		fmt.Fprintln(e.stderr, "no nodens runs with the same files and network; this is about one without flags")
		return d, nil
	}
	with := *e
	with.args = slices.Concat([]string{"doctor"}, r.args, own)
	getenv := e.getenv
	e.getenv = func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return r.env[name]
	}
	return readDoctorFlags(with)
}
