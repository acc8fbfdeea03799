package outage

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestZonesDoNotStarve: twelve pods look up external names whose upstream is dead,
// 8,000 per second. Every lookup of a cluster name by the same pods is answered.
func TestZonesDoNotStarve(t *testing.T) {
	const pods, rate, cluster = 12, 8000, "10.53.0.2:53"
	n := lab.NewNetns(t, "node")
	n.AddAddrs(t, "lo", strings.TrimSuffix(upstream, ":53")+"/32", strings.TrimSuffix(cluster, ":53")+"/32")
	startUpstream(t, n, upstream).set(dead)
	startUpstream(t, n, cluster)
	corefile := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), ". {\n errors\n bind 127.0.0.1\n cache 30\n forward . "+upstream+
		"\n}\ncluster.local {\n errors\n bind 127.0.0.1\n cache 30\n forward . "+cluster+"\n}\n")
	m := lab.NewMemory(t)
	m.Limit(t, 128<<20)
	d := lab.Command{Netns: n, Args: []string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, m.Dir,
		nodens.Path(t), "-conf", corefile, "-clients", "all"}}.Start(t)
	d.Out.WaitFor(t, 0, ` listens on `)

	stop := make(chan struct{})
	time.AfterFunc(5*time.Second, func() { close(stop) })
	var work sync.WaitGroup
	var inCluster []*client
	for i := range pods {
		external := newClient(t, n, i, typeA, func(seq int) string { return fmt.Sprintf("x%d-%d.example", i, seq) })
		work.Go(func() { external.run(rate/pods, stop) })
		c := newClient(t, n, i, typeA, func(seq int) string { return fmt.Sprintf("s%d-%d.default.svc.cluster.local", i, seq) })
		inCluster = append(inCluster, c)
		work.Go(func() { c.run(3, stop) })
	}
	work.Wait()
	var all tally
	for _, c := range inCluster {
		all.add(c.tally)
	}
	if all.sent == 0 || all.rcodes[0] != all.sent {
		t.Errorf("%d of %d cluster lookups were answered, rcodes %v", all.rcodes[0], all.sent, all.rcodes)
	}
	d.Kill()
}
