package outage

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// subject is a DNS cache in a memory cgroup.
type subject struct {
	*lab.Process
	netns  *lab.Netns
	name   string
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
	s := &subject{netns: n, name: name, memory: m, Process: lab.Command{Netns: n, Args: append(join, args...)}.Start(t)}
	warm(t, n)
	return s
}

// usage is the memory of a subject, in bytes.
type usage struct {
	memory int64 // as anonymous returns it
	cached int64 // part of it: answers; 0 for the peers
}

func (s *subject) usage(t *testing.T) usage {
	t.Helper()
	u := usage{memory: s.anonymous(t)}
	if s.name == "nodens" {
		cached, _ := s.netns.Scrape(t, metrics).Sum("nodens_cache_bytes")
		u.cached = int64(cached)
	}
	return u
}

// idleMemory is what nodens may take without load and without answers, in bytes: the
// part of the process in docs/cache.md.
const idleMemory = 24 << 20

// settle waits until nodens takes no more than idleMemory besides answers, for 30 s, or
// longer on an emulated CPU. It returns the memory and how long that took; 0 if it took
// too long. It does not wait for peers.
func (s *subject) settle(t *testing.T) (u usage, took time.Duration) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		u, took = s.usage(t), time.Since(start)
		switch {
		case s.name != "nodens", took > 6*replyWait():
			return u, 0
		case u.memory-u.cached <= idleMemory:
			return u, took
		}
	}
}

// anonymous is the memory that the kernel cannot reclaim, in bytes.
func (s *subject) anonymous(t *testing.T) int64 {
	t.Helper()
	return s.memory.Used(t) - s.memory.IdleFiles(t)
}
