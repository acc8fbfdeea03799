package deploy

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Capabilities, from the kernel's capability.h.
const (
	capNetBindService = 1 << 10
	capNetAdmin       = 1 << 12
	capSysPtrace      = 1 << 19
	capSysAdmin       = 1 << 21
	capPerfmon        = 1 << 38
	capBPF            = 1 << 39
)

// cgroupOf makes a cgroup that stands for that of all pods, and returns it and its
// mount.
func cgroupOf(t *testing.T) (dir, mount string) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); strings.Contains(s.Text(), " - cgroup2 ") && strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			mount = fields[4]
		}
	}
	if mount == "" {
		skip(t, "no cgroup v2 hierarchy below /sys/fs/cgroup")
	}
	dir = filepath.Join(mount, fmt.Sprintf("nodens-deploy-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		skip(t, err.Error())
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	return dir, mount
}

// bpffsOf mounts a new BPF file system. Its pins disappear with it.
func bpffsOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := command(".", "mount", "-t", "bpf", "bpf", dir); err != nil {
		skip(t, err.Error())
	}
	t.Cleanup(func() { _, _ = command(".", "umount", dir) })
	return dir
}

// TestPodmanRedirect checks that the pod can redirect sockets. Sockets in the pods'
// cgroup reach nodens at an address without a route, and the cluster's DNS after the
// pod has ended.
func TestPodmanRedirect(t *testing.T) {
	s, n := newStore(t), newNode(t)
	needRoot(t, "dig", "mount", "umount")
	kubepods, _ := cgroupOf(t)
	bpffs, run := bpffsOf(t), t.TempDir()
	if err := os.Mkdir(run+"/nodens", 0o755); err != nil {
		t.Fatal(err)
	}
	s.build(root, "localhost/nodens:test", "amd64")
	inside := "/host/cgroup" + strings.TrimPrefix(kubepods, "/sys/fs/cgroup")
	all := mustTemplate(t, append(testImage, "--set", "tier=full,redirect.mode=on,extraArgs={-kubepods="+inside+"}")...)
	spec, c := pod(t, all)
	for i := range spec.Volumes {
		if h := spec.Volumes[i].HostPath; h != nil && h.Path != "/sys/fs/cgroup" {
			h.Path = map[string]string{"/sys/fs/bpf": bpffs, "/run/nodens": run + "/nodens"}[h.Path]
		}
	}
	for i, e := range c.Env { // as the kubelet fills it in
		if e.Name == "NODE_IP" {
			c.Env[i] = core.EnvVar{Name: e.Name, Value: "10.0.0.7"}
		}
	}
	p := newPodman(s, n)
	pid := p.play(all)
	dig := []string{"dig", "@169.254.20.10", "+short", "+time=2", "+tries=1", "kubernetes.default.svc.cluster.local"}
	if out, err := n.peer.try(dig...); err == nil {
		t.Errorf("the address is reachable from outside of the pods' cgroup: %s", out)
	}
	asPod := append([]string{"sh", "-c", `echo 0 >"$0"/cgroup.procs; exec "$@"`, kubepods}, dig...)
	answers := func() bool {
		out, err := n.peer.try(asPod...)
		return err == nil && strings.TrimSpace(out) == "10.96.0.1"
	}
	p.await("redirected", answers)
	checkStatus(t, pid, "0", capNetBindService|capNetAdmin|capSysPtrace|capSysAdmin|capPerfmon|capBPF)

	teardown := teardownPod(t, map[string]string{"/sys/fs/bpf": bpffs, "/run": run})
	if out, _ := p.playTeardown(teardown); !strings.Contains(out, "uninstall nodens first") || !answers() {
		t.Errorf("teardown while nodens serves prints %q", out)
	}
	if _, err := p.podman("stop", "--time", "0", "nodens-nodens"); err != nil { // SIGKILL: nodens removes nothing
		t.Fatal(err)
	}
	p.await("answered by the fallback once the pod is gone", answers)
	out, done := p.playTeardown(teardown)
	if !done || !strings.Contains(out, "nothing of nodens is left on this node") {
		t.Errorf("teardown prints %q, done %t", out, done)
	}
	if answers() {
		t.Error("sockets are still redirected after teardown")
	}
	if got := n.run("ip", "address") + n.run("nft", "list", "tables"); strings.Contains(got, "169.254.20.10") || strings.Contains(got, "table inet nodens") {
		t.Errorf("left after teardown:\n%s", got)
	}
	for _, dir := range []string{bpffs, run} {
		if _, err := os.Stat(dir + "/nodens"); !os.IsNotExist(err) {
			t.Errorf("left after teardown: %s/nodens, %v", dir, err)
		}
	}
}

// teardownPod returns the pod of deploy/teardown.yaml with other host paths, our image
// and no patience.
func teardownPod(t *testing.T, paths map[string]string) string {
	t.Helper()
	spec := get[*apps.DaemonSet](t, decode(t, readFile(t, root+"/deploy/teardown.yaml"))).Spec.Template.Spec
	for _, c := range [][]core.Container{spec.InitContainers, spec.Containers} {
		c[0].Image, c[0].ImagePullPolicy = "localhost/nodens:test", core.PullNever
		for i, arg := range c[0].Args {
			c[0].Args[i] = strings.Replace(arg, "-wait=1m", "-wait=1s", 1)
		}
	}
	spec.RestartPolicy = core.RestartPolicyNever // podman restarts init containers that succeed
	for _, v := range spec.Volumes {
		v.HostPath.Path = paths[v.HostPath.Path]
	}
	return writeFile(t, filepath.Join(t.TempDir(), "teardown.yaml"), toYAML(t, &core.Pod{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Spec: spec,
		ObjectMeta: meta.ObjectMeta{Name: "teardown", Annotations: map[string]string{"io.podman.annotations.init.container.type": "always"}}, // keeps its log
	}))
}

// playTeardown runs the pod in file. It returns the log of its init container, and
// whether the pod became ready. It removes the pod.
func (p *podmanOn) playTeardown(file string) (out string, ready bool) {
	p.t.Helper()
	_, err := p.podman("kube", "play", file)
	out, _ = p.podman("logs", "teardown-teardown")
	state, _ := p.podman("inspect", "--format", "{{.State.Running}}", "teardown-done")
	if _, rmErr := p.podman("pod", "rm", "--force", "--time", "10", "teardown"); rmErr != nil {
		p.t.Fatal(rmErr)
	}
	return out + fmt.Sprint(err), strings.TrimSpace(state) == "true"
}

// TestTeardownManifest checks that deploy/teardown.yaml has the image and addresses of
// the chart, and no more privileges than it needs.
func TestTeardownManifest(t *testing.T) {
	all := decode(t, readFile(t, root+"/deploy/teardown.yaml"))
	spec := get[*apps.DaemonSet](t, all).Spec.Template.Spec
	chart := mustTemplate(t)
	_, c := pod(t, chart)
	init := spec.InitContainers[0]
	if init.Image != c.Image || spec.Containers[0].Image != c.Image {
		t.Errorf("images %s, %s; the chart has %s", init.Image, spec.Containers[0].Image, c.Image)
	}
	if arg := "-localip=169.254.20.10"; !slices.Contains(init.Args, arg) || !slices.Contains(c.Args, arg) {
		t.Errorf("arguments %q; the chart has %q", init.Args, c.Args)
	}
	want := map[string]string{
		"host namespaces": "hostNetwork=true", "hostPath volumes": `volumes "bpffs", "run"`,
		"non-default capabilities":   `container "teardown" must not include "BPF", "NET_ADMIN" in securityContext.capabilities.add`,
		"forbidden AppArmor profile": `container "teardown" must not set AppArmor profile type to "Unconfined"`,
	}
	if got := violations(t, all); !maps.Equal(got, want) {
		t.Errorf("forbidden: %q\nwant %q", got, want)
	}
}
