package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrSeveralDaemons: FindDaemon does not know which daemon is meant.
var ErrSeveralDaemons = errors.New("several nodens run here, with different flags: give the flags of one of them")

// Daemon is a nodens daemon that runs on this node with the same network as this
// process.
type Daemon struct {
	PID  int
	UID  int               // effective
	Args []string          // without the program
	Env  map[string]string // nil: not readable
	Root string            // where this process finds its files; empty: /
	Dir  string            // its working directory, as it sees it
}

// FindDaemon looks for daemons in procfs. Those with the files of this process come
// before those in another container. found is false if there is none.
func FindDaemon(procfs string) (d Daemon, found bool, err error) {
	dirs, _ := filepath.Glob(filepath.Join(procfs, "[0-9]*")) // the pattern is valid
	var here, elsewhere []Daemon
	for _, dir := range dirs {
		if filepath.Base(dir) == strconv.Itoa(os.Getpid()) || !shares(procfs, dir, "net") {
			continue
		}
		switch one, ok := readDaemon(dir); {
		case !ok:
		case shares(procfs, dir, "mnt"):
			here = append(here, one)
		default:
			one.Root = filepath.Join(dir, "root")
			elsewhere = append(elsewhere, one)
		}
	}
	all := here
	if len(all) == 0 {
		all = elsewhere
	}
	for _, one := range all {
		if !slices.Equal(one.Args, all[0].Args) {
			return Daemon{}, false, ErrSeveralDaemons
		}
	}
	if len(all) == 0 {
		return Daemon{}, false, nil
	}
	return all[0], true, nil
}

// shares reports whether the process of dir has our namespace of a kind.
func shares(procfs, dir, kind string) bool {
	theirs, err := os.Readlink(filepath.Join(dir, "ns", kind))
	ours, ourErr := os.Readlink(filepath.Join(procfs, "thread-self/ns", kind))
	return err == nil && ourErr == nil && theirs == ours
}

// readDaemon reads the process of dir. ok is false if it is not a nodens daemon, but
// for example one of the commands of nodens.
func readDaemon(dir string) (d Daemon, ok bool) {
	comm, err := os.ReadFile(filepath.Join(dir, "comm"))
	line, lineErr := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || lineErr != nil || !strings.HasPrefix(string(comm), programName) {
		return d, false
	}
	d.Args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")[1:]
	if len(line) == 0 || len(d.Args) > 0 && !strings.HasPrefix(d.Args[0], "-") {
		return d, false // a zombie, or a command
	}
	d.PID, _ = strconv.Atoi(filepath.Base(dir)) // digits, by the pattern
	d.Env = environ(dir)
	d.Dir, _ = os.Readlink(filepath.Join(dir, "cwd"))
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil {
		d.UID = int(st.Uid)
	}
	return d, true
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
