package deploy

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// waitTimeout is the timeout of every wait. No test measures time.
const waitTimeout = 2 * time.Minute

// node is a network namespace that stands for a node.
type node struct {
	t    *testing.T
	name string
	peer *node // connected to it
}

// clusterDNS is the address of the upstream Service, nodeIP that of the node.
const clusterDNS, nodeIP = "10.96.0.10", "10.0.0.7"

// newNode makes a namespace and a connected one with the cluster's DNS.
func newNode(t *testing.T) *node {
	t.Helper()
	n, cluster := newNamespace(t, "node"), newNamespace(t, "cluster")
	n.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "node0", "netns", cluster.name)
	n.run("ip", "address", "add", nodeIP+"/24", "dev", "up0")
	n.run("ip", "link", "set", "up0", "up")
	cluster.run("ip", "address", "add", "10.0.0.1/24", "dev", "node0")
	cluster.run("ip", "address", "add", clusterDNS+"/32", "dev", "lo")
	cluster.run("ip", "link", "set", "node0", "up")
	n.run("ip", "route", "add", clusterDNS, "via", "10.0.0.1")
	cluster.serveCluster()
	n.peer = cluster
	return n
}

func newNamespace(t *testing.T, what string) *node {
	t.Helper()
	n := &node{t: t, name: fmt.Sprintf("nodens-deploy-%d-%s-%s", os.Getpid(), t.Name(), what)}
	if _, err := command(".", "ip", "netns", "add", n.name); err != nil {
		skip(t, err.Error())
	}
	t.Cleanup(func() { _, _ = command(".", "ip", "netns", "del", n.name) })
	n.run("ip", "link", "set", "lo", "up")
	return n
}

// enter returns a command line that runs args on the node. Unlike ip netns exec it
// does not mount /sys.
func (n *node) enter(args ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + n.name}, args...)
}

func (n *node) try(args ...string) (string, error) {
	line := n.enter(args...)
	return command(".", line[0], line[1:]...)
}

func (n *node) run(args ...string) string {
	n.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// serveCluster starts the cluster's DNS: the daemon's sample zone and a name outside
// of the cluster.
func (n *node) serveCluster() {
	n.t.Helper()
	conf := writeFile(n.t, filepath.Join(n.t.TempDir(), "Corefile"), "cluster.local {\n bind "+clusterDNS+"\n sample\n}\nexample {\n bind "+clusterDNS+"\n hosts {\n  192.0.2.7 outside.example before.example after.example\n }\n}\n")
	n.start("-conf", conf, "-basecorefile=")
}

// podmanOn returns podman for pods in the node's network.
type podmanOn struct {
	*node
	store *store
	env   []string
}

func newPodman(s *store, n *node) *podmanOn {
	conf := writeFile(s.t, filepath.Join(s.dir, "containers.conf"), "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n")
	return &podmanOn{node: n, store: s, env: append(os.Environ(), "CONTAINERS_CONF="+conf)}
}

func (p *podmanOn) podman(args ...string) (string, error) {
	line := p.enter(append(append([]string{"podman"}, p.store.options...), append([]string{"--cgroup-manager", "cgroupfs", "--runtime", "runc"}, args...)...)...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = p.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("podman %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String() + errs.String(), err
}

// play runs the pod of a manifest as the kubelet does, and returns the ID of its
// process once it serves. The end of the test removes the pod.
func (p *podmanOn) play(all objects) (pid string) {
	p.t.Helper()
	file := writeFile(p.t, filepath.Join(p.t.TempDir(), "pod.yaml"), podManifest(p.t, all))
	out, err := p.podman("kube", "play", file)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			logs, _ := p.podman("logs", "nodens-nodens")
			p.t.Logf("log of the container:\n%s", logs)
		}
		_, _ = p.podman("pod", "rm", "--force", "--all")
	})
	if err != nil {
		p.t.Fatalf("%v\n%s", err, out)
	}
	p.await("listening", func() bool {
		logs, _ := p.podman("logs", "nodens-nodens")
		return strings.Contains(logs, " listens on ")
	})
	pid, err = p.podman("inspect", "--format", "{{.State.Pid}}", "nodens-nodens")
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(pid)
}

func (p *podmanOn) await(what string, done func() bool) {
	p.t.Helper()
	late := time.After(waitTimeout)
	for tick := time.NewTicker(100 * time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-late:
			p.t.Fatalf("not %s after %v", what, waitTimeout)
		}
	}
}

// podManifest returns the DaemonSet's pod with its ConfigMaps and the environment
// that the kubelet adds, and without probes and optional ConfigMaps, which podman
// does not support.
func podManifest(t *testing.T, all objects) string {
	t.Helper()
	d := get[*apps.DaemonSet](t, all)
	spec := d.Spec.Template.Spec.DeepCopy()
	c := &spec.Containers[0]
	c.LivenessProbe, c.ReadinessProbe, c.Ports = nil, nil, nil
	for i, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			c.Env[i] = core.EnvVar{Name: e.Name, Value: "node1"} // podman does not know the field
		}
	}
	c.Env = append(c.Env, core.EnvVar{Name: "NODENS_UPSTREAM_SERVICE_HOST", Value: clusterDNS})
	spec.HostNetwork = true // the test's namespace
	var volumes []core.Volume
	var maps string
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil && v.ConfigMap.Optional != nil {
			c.VolumeMounts = without(c.VolumeMounts, v.Name)
			continue
		}
		if v.ConfigMap != nil {
			maps += toYAML(t, all["ConfigMap/"+v.ConfigMap.Name]) + "---\n"
		}
		volumes = append(volumes, v)
	}
	spec.Volumes = volumes
	return maps + toYAML(t, &core.Pod{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta.ObjectMeta{Name: "nodens", Labels: d.Spec.Template.Labels},
		Spec:       *spec,
	})
}

func without(mounts []core.VolumeMount, name string) (kept []core.VolumeMount) {
	for _, m := range mounts {
		if m.Name != name {
			kept = append(kept, m)
		}
	}
	return kept
}

func toYAML(t *testing.T, o any) string {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var testImage = []string{"--set", "image.repository=localhost/nodens,image.tag=test,image.pullPolicy=Never,config.upstreamServers=" + clusterDNS + ",config.lameduck=1s"}

// digAnswer queries server for a name of the cluster.
func (n *node) digAnswer(server string, options ...string) string {
	n.t.Helper()
	return strings.TrimSpace(n.run(append([]string{"dig", "@" + server, "+short", "+time=10", "+tries=3", "kubernetes.default.svc.cluster.local"}, options...)...))
}

// TestPodmanHostNetwork checks that the rendered pod runs with its capabilities, answers, becomes
// ready and restores the node.
func TestPodmanHostNetwork(t *testing.T) {
	s, n := newStore(t), newNode(t)
	needRoot(t, "dig", "nft", "curl")
	s.build(root, "localhost/nodens:test", "amd64")
	p := newPodman(s, n)
	all := mustTemplate(t, append(testImage, "--set", `config.localDns=169.254.20.10\,fd00:53::10,tier=minimal,config.cacheSnapshot=false`)...)
	before := n.run("ip", "address", "show", "dev", "lo")
	pid := p.play(all)
	for _, server := range []string{"169.254.20.10", "fd00:53::10"} {
		for _, option := range []string{"+notcp", "+tcp"} {
			if got := n.digAnswer(server, option); got != "10.96.0.1" {
				t.Errorf("%s %s: answer %q", server, option, got)
			}
		}
	}
	_, c := pod(t, all)
	for _, probe := range []*core.Probe{c.LivenessProbe, c.ReadinessProbe} {
		url := fmt.Sprintf("http://%s:%d%s", cmp.Or(probe.HTTPGet.Host, nodeIP), probe.HTTPGet.Port.IntVal, probe.HTTPGet.Path)
		n.run("curl", "--fail", "--silent", "--show-error", "--max-time", "30", url)
	}
	checkStatus(t, pid, "0", capNetAdmin|capNetBindService)
	p.crash(pid)
	if got := n.digAnswer("169.254.20.10"); got != "10.96.0.1" {
		t.Errorf("after a crash: answer %q", got)
	}
	if !strings.Contains(n.run("nft", "list", "tables"), "inet nodens") {
		t.Error("table inet nodens does not exist")
	}
	if _, err := p.podman("stop", "--time", "60", "nodens-nodens"); err != nil {
		t.Fatal(err)
	}
	if after := n.run("ip", "address", "show", "dev", "lo"); after != before {
		t.Errorf("addresses before:\n%s\nafter:\n%s", before, after)
	}
	if got := n.run("nft", "list", "tables"); got != "" {
		t.Errorf("tables after: %s", got)
	}
}

// crash kills the worker of the container's process pid, and waits for the next one.
func (p *podmanOn) crash(pid string) {
	p.t.Helper()
	worker := p.childOf(pid)
	p.run("kill", "-KILL", worker)
	p.await("served by a new worker in the same container", func() bool {
		logs, _ := p.podman("logs", "nodens-nodens")
		return p.childOf(pid) != worker && strings.Count(logs, " listens on ") == 2
	})
}

// childOf returns the child of a process, or "".
func (p *podmanOn) childOf(pid string) string {
	lists, _ := filepath.Glob("/proc/" + pid + "/task/*/children") // the pattern is valid
	for _, list := range lists {
		if b, err := os.ReadFile(list); err == nil && len(b) > 0 {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

// TestPodmanImageAlone checks that the Kubernetes addon's manifest works with our image, which
// has neither the directory of the PID file nor an iptables lock.
func TestPodmanImageAlone(t *testing.T) {
	s, n := newStore(t), newNode(t)
	needRoot(t, "dig", "curl")
	s.build(root, "localhost/nodens:test", "amd64")
	text := strings.NewReplacer("__PILLAR__LOCAL__DNS__,__PILLAR__DNS__SERVER__", "169.254.20.10", "__PILLAR__LOCAL__DNS__", "169.254.20.10",
		"__PILLAR__DNS__SERVER__", "", "__PILLAR__DNS__DOMAIN__", "cluster.local").Replace(readFile(t, "../../cmd/nodens/testdata/migrate/addon.yaml"))
	all := decode(t, text)
	spec, c := pod(t, all)
	c.Image, c.ImagePullPolicy = "localhost/nodens:test", core.PullNever
	c.Name = "nodens" // part of the container's name in podman
	c.Env = append(c.Env, core.EnvVar{Name: "KUBE_DNS_UPSTREAM_SERVICE_HOST", Value: clusterDNS})
	for i := range spec.Volumes {
		if host := spec.Volumes[i].HostPath; host != nil { // not a path of this machine
			host.Path = filepath.Join(t.TempDir(), "xtables.lock")
		}
	}
	pid := newPodman(s, n).play(all)
	if got := n.digAnswer("169.254.20.10"); got != "10.96.0.1" {
		t.Errorf("answer %q", got)
	}
	n.run("curl", "--fail", "--silent", "--show-error", "--max-time", "30", "http://169.254.20.10:8080/health")
	if got := readFile(t, "/proc/"+pid+"/root/tmp/node-cache.pid"); got != "1\n" {
		t.Errorf("PID file %q", got)
	}
}

// TestPodmanLocalRedirect checks that the pod for Cilium's local redirect runs without
// capabilities and not as root.
func TestPodmanLocalRedirect(t *testing.T) {
	s, n := newStore(t), newNode(t)
	needRoot(t, "dig")
	s.build(root, "localhost/nodens:test", "amd64")
	all := mustTemplate(t, append(testImage, "--values", examples+"/cilium-lrp.yaml")...)
	spec, _ := pod(t, all)
	for _, sysctl := range spec.SecurityContext.Sysctls { // as the kubelet does, in the pod's namespace
		n.run("sh", "-c", `echo "$1" >"/proc/sys/$(echo "$0" | tr . /)"`, sysctl.Name, sysctl.Value)
	}
	// As in a pod, only the default route leads to clients.
	n.run("ip", "route", "add", "default", "via", "10.0.0.1")
	n.peer.run("ip", "address", "add", "10.7.0.9/32", "dev", "lo")
	pid := newPodman(s, n).play(all)
	if got := n.peer.digAnswer("10.0.0.7", "-b", "10.7.0.9"); got != "10.96.0.1" {
		t.Errorf("answer %q", got)
	}
	checkStatus(t, pid, "65532", 0)
}

// checkStatus checks user and capabilities in proc_pid_status(5), and that the
// process cannot gain more.
func checkStatus(t *testing.T, pid, uid string, caps uint64) {
	t.Helper()
	status := readFile(t, "/proc/"+pid+"/status")
	hex := fmt.Sprintf("%016x", caps)
	for field, want := range map[string]string{"Uid": uid + "\t.*", "CapBnd": hex, "CapEff": hex, "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1", "Seccomp": "2"} {
		if !regexp.MustCompile(`(?m)^` + field + `:\t` + want + `$`).MatchString(status) {
			t.Errorf("%s is not %s in\n%s", field, want, status)
		}
	}
}
