package test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestHandOver replaces the process three times: by one that starts beside it, by
// one that starts after it, and by one that finds a damaged file. The first two
// have the cache of their predecessor with the same ages.
func TestHandOver(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		next func(t *testing.T, old *lab.Daemon, file string, start func() *lab.Daemon) *lab.Daemon
		warm bool
	}{
		{"beside it", func(t *testing.T, old *lab.Daemon, file string, start func() *lab.Daemon) *lab.Daemon {
			d := start()
			d.Err.WaitFor(t, 0, `msg="cache taken over" from=.*\.sock entries=2`)
			old.Err.WaitFor(t, 0, `msg="cache handed over"`)
			endDaemon(t, old)
			if _, err := os.Stat(file); err == nil {
				t.Error("the old process left its file behind")
			}
			return d
		}, true},
		{"after it", func(t *testing.T, old *lab.Daemon, file string, start func() *lab.Daemon) *lab.Daemon {
			endDaemon(t, old)
			d := start()
			d.Err.WaitFor(t, 0, `msg="cache taken over" from=.* entries=2`)
			return d
		}, true},
		{"after damage", func(t *testing.T, old *lab.Daemon, file string, start func() *lab.Daemon) *lab.Daemon {
			endDaemon(t, old)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			d := start()
			d.Err.WaitFor(t, 0, `msg="reading the old process's cache failed" .*the checksum is wrong`)
			return d
		}, false},
		{"after a file of another owner", func(t *testing.T, old *lab.Daemon, file string, start func() *lab.Daemon) *lab.Daemon {
			endDaemon(t, old)
			if err := os.Chmod(file, 0o666); err != nil {
				t.Fatal(err)
			}
			d := start()
			d.Err.WaitFor(t, 0, `other users may write to it`)
			return d
		}, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			n, ip := c.addUpstream(t)
			up := lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
				return lab.Reply(q, q.Question[0].Name+" 3600 IN A "+hashed(q.Question[0].Name))
			})
			file := filepath.Join(t.TempDir(), "run", "cache")
			start := func() *lab.Daemon {
				return c.start(t, ". {\n cache 3600\n bind "+localIP+"\n forward . "+ip+"\n}", "-cache-snapshot", file)
			}
			old := start()
			names := []string{"one.example.", "two.example."}
			for _, name := range names {
				c.pod.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA))
			}
			s.next(t, old, file, start)
			if _, err := os.Stat(file); err == nil && s.warm {
				t.Error("the file was read and still exists")
			}
			for _, name := range names {
				asked := len(up.Seen(name))
				r := c.pod.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA))
				if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != hashed(name) {
					t.Errorf("%s: %v", name, r)
				}
				if again := len(up.Seen(name)) > asked; again == s.warm {
					t.Errorf("%s: query to the upstream: %t", name, again)
				}
			}
		})
	}
}

func endDaemon(t *testing.T, d *lab.Daemon) {
	t.Helper()
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("status %d", status)
	}
}
