package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrSeveralDaemons: FindDaemon does not know which daemon is meant.
var ErrSeveralDaemons = errors.New("several nodens run here, with different flags: give the flags of one of them")

// Daemon is a nodens daemon that runs on this node with the same files and network
// as this process.
type Daemon struct {
	Args []string // without the program
	Env  map[string]string
}

// FindDaemon looks for daemons in procfs. found is false if there is none.
func FindDaemon(procfs string) (d Daemon, found bool, err error) {
	dirs, _ := filepath.Glob(filepath.Join(procfs, "[0-9]*")) // the pattern is valid
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) || !sharesNamespaces(procfs, dir) {
			continue
		}
		args, isDaemon := daemonArgs(dir)
		if !isDaemon {
			continue
		}
		if found && !slices.Equal(args, d.Args) {
			return Daemon{}, false, ErrSeveralDaemons
		}
		d, found = Daemon{args, environ(dir)}, true
	}
	return d, found, nil
}

// sharesNamespaces reports whether the process of dir has our mount and network
// namespaces.
func sharesNamespaces(procfs, dir string) bool {
	for _, ns := range []string{"ns/mnt", "ns/net"} {
		theirs, err := os.Readlink(filepath.Join(dir, ns))
		ours, ourErr := os.Readlink(filepath.Join(procfs, "thread-self", ns))
		if err != nil || ourErr != nil || theirs != ours {
			return false
		}
	}
	return true
}

// daemonArgs returns the arguments of the process of dir. ok is false if it is not a
// nodens daemon, but for example one of the commands of nodens.
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
