package cluster

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	only    = flag.String("drill", "", "run the drills that match this `pattern` only")
	options = flag.String("helm", "", "the `options` of helm with which nodens was installed")
)

// drill is something that happens to the cluster while clients look up names.
type drill struct {
	name          string
	before, after func(t *testing.T) // not part of it; may be nil
	do            func(t *testing.T)
	why           string // see row
	// What ends: the worker, which dies or hangs, or the container. docs/supervisor.md says
	// what each tier loses.
	worker, hung, container bool
}

var drills = []drill{
	{name: "nothing happens", do: func(*testing.T) {}},
	{name: "rollout restart", do: func(t *testing.T) {
		kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/nodens")
		// A surge: the new pod exists before the old one goes.
		waitFor(t, "new pod beside the old one", func() (bool, string) {
			pods, err := podsOn("1", "--no-headers")
			return err == nil && strings.Count(pods, "\n") == 2, pods
		})
		waitForRollout(t, "nodens")
	}},
	{name: "kill -9 of the worker", do: func(t *testing.T) { replaceWorkers(t, "kill -9") }, worker: true},
	{name: "SIGSTOP of the worker", do: func(t *testing.T) { replaceWorkers(t, "kill -STOP") }, worker: true, hung: true},
	{name: "kill -9 of all processes", do: func(t *testing.T) {
		restartContainers(t, "kill -9 $(pidof nodens)")
	}, container: true},
	{name: "deletion of the pods", do: func(t *testing.T) {
		kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=nodens")
		waitForRollout(t, "nodens")
	}},
	// A new pod, because the kubelet restarts a container at once only the first time. If
	// nodens is away for longer than 5 s, glibc fails the lookups that were in flight.
	{name: "out of memory (cgroup v2)", do: func(t *testing.T) {
		// The limit is below what the container uses, so the kernel kills it.
		restartContainers(t, `echo 4M >/sys/fs/cgroup$(cut -d: -f3 /proc/$(pidof -s nodens)/cgroup)/memory.max`)
	}, container: true},
	{name: "bad Corefile in the ConfigMap", do: badCorefile},
	{name: "helm upgrade", do: func(t *testing.T) {
		upgrade(t, "--set", "podAnnotations.drill=upgrade", "--set", "config.cacheTTL=20")
	}},
	{name: "API server away for a minute", do: awayAPIServer},
	{name: "CoreDNS scaled to 0 and back", do: func(t *testing.T) {
		kubectl(t, "-n", "kube-system", "scale", "deployment/coredns", "--replicas=0")
		kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-dns", "--timeout", timeout.String())
		kubectl(t, "-n", "kube-system", "scale", "deployment/coredns", "--replicas=2")
		kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout", timeout.String())
	}, why: "new names need CoreDNS for the search domains"},
}

// TestDrills counts the failed lookups of each client during each drill.
func TestDrills(t *testing.T) {
	needCluster(t)
	pattern := regexp.MustCompile(*only)
	startClients(t)
	var rows []row
	t.Cleanup(func() { t.Logf("\n%s", table(rows)) })
	for _, d := range append(drills, moves...) {
		if !pattern.MatchString(d.name) {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Log(describe())
				}
				if d.after != nil {
					d.after(t)
				}
			}()
			r := d.run(t)
			rows = append(rows, r)
			t.Logf("\n%s", table([]row{r}))
			r.check(t)
			if r.why != "" {
				settle(t)
			}
		})
	}
}

func (d drill) run(t *testing.T) row {
	t.Helper()
	if d.before != nil {
		d.before(t)
	}
	settle(t)
	start := time.Now()
	d.do(t)
	all := endRound(t, clients)
	r := row{drill: d.name, took: time.Since(start), all: all, why: d.why}
	if d.container || d.worker && strings.Contains(*options, "tier=resilient") {
		r.why, r.glibc = "glibc's lookups in flight may fail after 5 s", true
	}
	if d.hung && strings.Contains(*options, "tier=minimal") {
		r.why, r.glibc = "lookups time out until the supervisor kills the worker, after 3 s", false
	}
	return r
}

// describe is the state of the cluster's pods and events, for a failure.
func describe() string {
	pods, _ := try("get", "pods", "-A", "-o", "wide")
	events, _ := try("get", "events", "-A", "--field-selector", "type=Warning")
	logs := ""
	for _, l := range []string{"app.kubernetes.io/name=nodens", "k8s-app=node-local-dns"} {
		out, _ := try("-n", "kube-system", "logs", "-l", l, "--tail=40", "--prefix", "--timestamps")
		logs += out
	}
	return pods + events + logs
}

// workerOf prints the PID of the worker of nodens: its parent is nodens, too.
const workerOf = `w=$(for p in $(pidof nodens); do [ "$(cat /proc/$(awk '{print $4}' /proc/$p/stat)/comm)" = nodens ] && echo $p; done); `

// replaceWorkers signals the worker of each node and waits for the next.
func replaceWorkers(t *testing.T, signal string) {
	t.Helper()
	for _, n := range nodes {
		old := strings.TrimSpace(onNode(t, n, workerOf+"echo $w; "+signal+" $w"))
		waitFor(t, "new worker", func() (bool, string) {
			now, err := tryOnNode(n, workerOf+"echo $w")
			now = strings.TrimSpace(now)
			return err == nil && now != "" && now != old && ready(n), now
		})
	}
}

// restartContainers runs a script that ends the container on each node, and waits
// until it runs again.
func restartContainers(t *testing.T, script string) {
	t.Helper()
	for _, n := range nodes {
		before := restarts(t, n)
		onNode(t, n, script)
		waitFor(t, "restart of the container", func() (bool, string) {
			now := restarts(t, n)
			return now > before && ready(n), fmt.Sprint(now)
		})
	}
}

// podsOn runs kubectl get for the pods of nodens on a node.
func podsOn(node string, more ...string) (string, error) {
	args := []string{"-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nodens", "--field-selector", "spec.nodeName=node" + node}
	return try(append(args, more...)...)
}

// restarts is how often the container of nodens on a node was restarted.
func restarts(t *testing.T, node string) (n int) {
	t.Helper()
	out, err := podsOn(node, "-o", "jsonpath={.items[*].status.containerStatuses[0].restartCount}")
	if err == nil {
		_, err = fmt.Sscan(out, &n)
	}
	if err != nil {
		t.Fatalf("restarts %q: %v", out, err)
	}
	return n
}

// ready reports whether nodens on a node says that it is ready, and kubelet knows.
func ready(node string) bool {
	if _, err := tryOnNode(node, "dig +short +time=2 +tries=1 @"+localIP+" www.example.test | grep -q 203.0.113.10"); err != nil {
		return false
	}
	out, err := podsOn(node, "-o", "jsonpath={.items[*].status.containerStatuses[0].ready}")
	return err == nil && out == "true"
}

// waitForDNS waits until nodens answers on every node.
func waitForDNS(t *testing.T) {
	t.Helper()
	for _, n := range nodes {
		waitFor(t, "nodens on node "+n, func() (bool, string) { return ready(n), "" })
	}
}

// metrics returns the metrics of nodens on a node.
func metrics(node string) (string, error) {
	return tryOnNode(node, "exec 3<>/dev/tcp/"+localIP+"/9253; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3")
}

// upgrade runs helm upgrade with the options of the installation and more. It takes back
// the Corefile from kubectl, which owns it after badCorefile.
func upgrade(t *testing.T, more ...string) {
	t.Helper()
	args := []string{"upgrade", "--install", "nodens", "../../deploy/chart", "--values", "values.yaml", "--force-conflicts"}
	helm(t, append(append(args, strings.Fields(*options)...), more...)...)
	waitForRollout(t, "nodens")
}

const corefileKey = `jsonpath={.data.Corefile}`

// badCorefile waits until nodens has refused a Corefile, and has accepted the old one
// again.
func badCorefile(t *testing.T) {
	old := kubectl(t, "-n", "kube-system", "get", "configmap", "nodens", "-o", corefileKey)
	for _, c := range []struct{ text, metric string }{
		{"nonsense:53 {\n    no_such_directive\n}\n", "nodens_config_last_reload_successful 0"},
		{old, "nodens_config_last_reload_successful 1"},
	} {
		putCorefile(t, "nodens", c.text)
		for _, n := range nodes {
			waitFor(t, c.metric, func() (bool, string) {
				out, err := metrics(n)
				return err == nil && strings.Contains(out, "\n"+c.metric+"\n"), ""
			})
		}
	}
}

// putCorefile replaces the Corefile in a ConfigMap.
func putCorefile(t *testing.T, configMap, text string) {
	t.Helper()
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), text)
	apply(t, kubectl(t, "-n", "kube-system", "create", "configmap", configMap, "--from-file=Corefile="+file, "--dry-run=client", "-o", "yaml"))
}

// awayAPIServer kills the API server and starts it again after a minute.
func awayAPIServer(t *testing.T) {
	pid, err := os.ReadFile(filepath.Join(dir, "run", "apiserver.pid"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("kill", "-9", strings.TrimSpace(string(pid))).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	<-time.After(time.Minute) // what the drill is about
	if out, err := exec.Command("./control.sh", "apiserver").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	waitForRollout(t, "nodens")
}
