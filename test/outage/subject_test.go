package outage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// subject is a DNS cache in a memory cgroup.
type subject struct {
	*lab.Process
	memory *lab.Memory
}

// makers start the subjects. Each subject caches and forwards to the upstream.
var makers = map[string]func(t *testing.T, corefile string) []string{
	"nodens": func(t *testing.T, corefile string) []string {
		return []string{nodens.Path(t), "-conf", corefile, "-clients", "all"}
	},
	"coredns": func(t *testing.T, corefile string) []string {
		return []string{lab.CoreDNS(t), "-conf", corefile}
	},
	"unbound": func(t *testing.T, _ string) []string {
		return lab.UnboundArgs(t, "127.0.0.1", "\tdo-not-query-localhost: no\n\tserve-expired: yes\n",
			"forward-zone:\n\tname: \".\"\n\tforward-addr: "+strings.Replace(upstream, ":", "@", 1)+"\n")
	},
}

// startSubject starts one of makers under a memory limit in bytes and waits
// until it answers.
func startSubject(t *testing.T, n *lab.Netns, name string, limit int64, extra string) *subject {
	t.Helper()
	corefile := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"),
		". {\n errors\n bind 127.0.0.1\n cache 3600\n prometheus "+metrics+"\n forward . "+upstream+"\n"+extra+"}\n")
	args := makers[name](t, corefile)
	m := lab.NewMemory(t)
	m.Limit(t, limit)
	join := []string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, m.Dir}
	s := &subject{memory: m, Process: lab.Command{Netns: n, Args: append(join, args...)}.Start(t)}
	warm(t, n)
	return s
}

// oomKills is how many processes of the cgroup the kernel has killed.
func (s *subject) oomKills(t *testing.T) (kills int) {
	t.Helper()
	for _, file := range []string{"memory.oom_control", "memory.events"} {
		text, err := os.ReadFile(filepath.Join(s.memory.Dir, file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			_, _ = fmt.Sscanf(line, "oom_kill %d", &kills)
		}
	}
	return kills
}

// anonymous is the memory that the kernel cannot reclaim, in bytes.
func (s *subject) anonymous(t *testing.T) int64 {
	t.Helper()
	return s.memory.Used(t) - s.memory.IdleFiles(t)
}
