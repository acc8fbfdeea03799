package deploy

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
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
	s.build(root, "localhost/nodens:test", "amd64")
	inside := "/host/cgroup" + strings.TrimPrefix(kubepods, "/sys/fs/cgroup")
	all := mustTemplate(t, append(testImage, "--set", "tier=full,redirect.mode=on,extraArgs={-kubepods="+inside+"}")...)
	spec, c := pod(t, all)
	for i := range spec.Volumes {
		if h := spec.Volumes[i].HostPath; h != nil && h.Path != "/sys/fs/cgroup" {
			h.Path = map[string]string{"/sys/fs/bpf": bpffs, "/run/nodens": run}[h.Path]
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
	if _, err := p.podman("stop", "--time", "60", "nodens-nodens"); err != nil {
		t.Fatal(err)
	}
	p.await("answered by the fallback once the pod is gone", answers)
}
