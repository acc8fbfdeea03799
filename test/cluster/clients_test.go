package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The load of each client, and its names: every second one is new and outside of the
// cluster, so that the resolver tries the search domains first; the other is a Service.
const load = "any.example.test 2 2 web"

// client is a pod whose container looks up names all the time.
type client struct{ libc, node string }

func (c client) pod() string { return c.libc + "-" + c.node }

var clients = func() (all []client) {
	for _, n := range nodes {
		for _, libc := range []string{"musl", "glibc", "go"} {
			all = append(all, client{libc, n})
		}
	}
	return all
}()

// loadDNS is the kubelet's resolv.conf without the node's search domain. CoreDNS says
// that names in that domain exist, which ends a lookup by musl. With that domain, musl's
// lookups would fail in each drill in which CoreDNS answers.
var loadDNS = `  dnsPolicy: None
  dnsConfig:
    nameservers: ["` + os.Getenv("CLUSTER_DNS") + `"]
    searches: [default.svc.cluster.local, svc.cluster.local, cluster.local]
    options: [{name: ndots, value: "5"}]
`

// startClients makes the clients' pods, Services of them, and waits for the pods. They
// stay until the cluster ends.
func startClients(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: client}, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: peers}
spec: {clusterIP: None, selector: {app: client}, ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {type: ExternalName, externalName: www.example.test}
`)
	for _, c := range clients {
		run := fmt.Sprintf("exec %s-client %s", c.libc, load)
		if c.libc == "go" {
			run = fmt.Sprintf("NODENS_LAB_CLIENT='%s' exec go-client", load)
		}
		b.WriteString(podManifest(c.pod(), "client", c.node, run, loadDNS))
	}
	apply(t, b.String())
	kubectl(t, "wait", "--for=condition=Ready", "pod", "-l", "app=client", "--timeout", timeout.String())
	for _, c := range clients {
		waitFor(t, "client "+c.pod(), func() (bool, string) {
			out, _ := try("logs", c.pod())
			seen.LoadOrStore(c, strings.Count(out, "\n")) // rounds of earlier runs
			return strings.Contains(out, "started"), out
		})
	}
}

// idle is the command of a pod in which tests run commands.
const idle = "exec sleep 1000000"

// podManifest is a pod with a label on a node that runs a shell command. spec is added
// to its spec.
func podManifest(name, app, node, run, spec string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[2]s}}
spec:
  hostname: %[1]s
  subdomain: peers
  nodeName: node%[3]s
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "localhost/client:1", imagePullPolicy: Never, command: [/bin/sh, -c, %[4]q]}]
%[5]s`, name, app, node, run, spec)
}

// result is what a client reports about its lookups since the last report.
type result struct {
	count, failed int
	longest       time.Duration
	failures      []string
}

func (r *result) add(o result) {
	r.count, r.failed = r.count+o.count, r.failed+o.failed
	r.longest = max(r.longest, o.longest)
	r.failures = append(r.failures, o.failures...)
}

var round = regexp.MustCompile(`(?m)^round (\d+) (\d+) (\d+)$`)

// endRound waits until the lookups in progress in each client have ended. It returns
// the results since the round before.
func endRound(t *testing.T, of []client) map[client]result {
	t.Helper()
	var mu sync.Mutex
	all := make(map[client]result)
	var wg sync.WaitGroup
	for _, c := range of {
		wg.Go(func() {
			r, err := c.endRound()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s: %v", c.pod(), err)
			}
			all[c] = r
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

func (c client) endRound() (r result, err error) {
	// The shell of the container's command has replaced itself with the client.
	if _, err := try("exec", c.pod(), "--", "kill", "-USR1", "1"); err != nil {
		return r, err
	}
	lines, err := c.waitForRound()
	if err != nil {
		return r, err
	}
	var ms int
	for _, l := range lines {
		if strings.HasPrefix(l, "failed ") {
			r.failures = append(r.failures, l)
		}
	}
	_, err = fmt.Sscanf(lines[len(lines)-1], "round %d %d %d", &r.count, &r.failed, &ms)
	r.longest = time.Duration(ms) * time.Millisecond
	return r, err
}

// seen is the number of lines of each client's log that belong to earlier rounds.
var seen sync.Map

// waitForRound returns the lines of the log up to the next round's.
func (c client) waitForRound() ([]string, error) {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(time.Second) {
		out, err := try("logs", c.pod())
		if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		from, _ := seen.LoadOrStore(c, 0)
		since := lines[min(len(lines), from.(int)):]
		if i := slices.IndexFunc(since, round.MatchString); i >= 0 {
			seen.Store(c, from.(int)+i+1)
			return since[:i+1], nil
		}
	}
	return nil, fmt.Errorf("no end of the round after %v", timeout)
}

// settle ends rounds until one has had lookups by each client and none failed.
func settle(t *testing.T) {
	t.Helper()
	waitFor(t, "round without failures", func() (bool, string) {
		for c, r := range endRound(t, clients) {
			if r.count == 0 || r.failed > 0 {
				return false, fmt.Sprintf("%s: %+v", c.pod(), r)
			}
		}
		return true, ""
	})
}

// row is a line of the table that TestDrills prints.
type row struct {
	drill string
	took  time.Duration
	all   map[client]result
	why   string // the deviation that the design explains; empty if no lookup may fail
	glibc bool   // why explains only glibc's, after 5 s or more
}

// table prints the rows: per libc the lookups, the failed ones and the longest.
func table(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %8s", "drill", "took")
	for _, libc := range []string{"musl", "glibc", "go"} {
		fmt.Fprintf(&b, " | %-22s", libc+": failed of, longest")
	}
	b.WriteByte('\n')
	for _, r := range rows {
		fmt.Fprintf(&b, "%-34s %8v", r.drill, r.took.Round(time.Second))
		for _, libc := range []string{"musl", "glibc", "go"} {
			var sum result
			for c, x := range r.all {
				if c.libc == libc {
					sum.add(x)
				}
			}
			fmt.Fprintf(&b, " | %4d of %5d, %7v", sum.failed, sum.count, sum.longest.Round(10*time.Millisecond))
		}
		if r.why != "" {
			b.WriteString("  " + r.why)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// tookLong matches a failure after 5 s or more.
var tookLong = regexp.MustCompile(`^failed \S+ ([5-9]\d{3}|\d{5,}) `)

// check fails the test for each failed lookup, unless the row explains it.
func (r row) check(t *testing.T) {
	t.Helper()
	for _, c := range slices.SortedFunc(maps.Keys(r.all), func(a, b client) int { return cmp.Compare(a.pod(), b.pod()) }) {
		x := r.all[c]
		if x.count == 0 {
			t.Errorf("%s: no lookups by %s", r.drill, c.pod())
		}
		explained := func(failure string) bool {
			return r.why != "" && (!r.glibc || c.libc == "glibc" && tookLong.MatchString(failure))
		}
		if slices.ContainsFunc(x.failures, func(f string) bool { return !explained(f) }) {
			t.Errorf("%s: %d of %d lookups by %s failed:\n%s", r.drill, x.failed, x.count, c.pod(),
				strings.Join(x.failures[:min(len(x.failures), 5)], "\n"))
		}
	}
}
