package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// runsc is gVisor's runtime, of the version in test/gvisor. The go command keeps
// what it builds in its cache.
var runsc = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	unlock, err := lockDir(filepath.Join(cache, "nodens-test", "gvisor")) // packages would build it at the same time
	if err != nil {
		return "", err
	}
	defer unlock()
	cmd := exec.Command("go", "-C", filepath.Join("..", "gvisor"), "tool", "-n", "runsc")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOTOOLCHAIN=auto") // gVisor may need a newer Go than nodens
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build gVisor: %w\n%s", err, &errs)
	}
	return strings.TrimSpace(string(out)), nil
})

// GVisor is a pod in gVisor's sandbox, which has its own network stack. It takes the
// addresses and routes of the pod's network namespace, as with containerd.
type GVisor struct {
	pod  *Netns
	args []string // of runsc, before the command
}

// StartGVisor moves a pod with its addresses into a sandbox. The sandbox has the
// machine's files, read-only, and binds. cgroup is that of the sandbox, see Command.
func StartGVisor(t testing.TB, pod *Netns, cgroup string, binds map[string]string) *GVisor {
	t.Helper()
	program, err := runsc()
	if err != nil {
		Skip(t, err.Error())
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(bundle(pod, root, binds))
	if err != nil {
		t.Fatal(err)
	}
	WriteFile(t, filepath.Join(dir, "config.json"), string(spec))
	g := &GVisor{pod, []string{program, "--root", dir, "--ignore-cgroups"}}
	// runsc is attached: its mounts and processes end with it.
	run := Command{Netns: pod, Cgroup: cgroup, Args: append(g.args, "run", "--bundle", dir, "pod"), Binds: map[string]string{root: "/"}}
	p := run.Start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("runsc: %s", p.Err.Text())
		}
	})
	p.Out.WaitFor(t, 0, "^started")
	return g
}

// bundle is the configuration of a container, see the OCI's runtime specification.
func bundle(pod *Netns, root string, binds map[string]string) any {
	type object map[string]any
	mounts := []object{{"destination": "/proc", "type": "proc", "source": "proc"}}
	for path, with := range binds {
		mounts = append(mounts, object{"destination": path, "type": "bind", "source": with, "options": []string{"ro"}})
	}
	return object{
		"ociVersion": "1.0.0",
		"process":    object{"args": []string{"sh", "-c", "echo started; exec sleep 1000000"}, "cwd": "/", "env": []string{"PATH=" + os.Getenv("PATH")}},
		"root":       object{"path": root, "readonly": true},
		"mounts":     mounts,
		"linux": object{"namespaces": []object{
			{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
			{"type": "network", "path": pod.Path()},
		}},
	}
}

// Output runs a program in the sandbox, see Command.
func (g *GVisor) Output(t testing.TB, env []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	line := append(append([]string{}, g.args...), "exec")
	for _, e := range env {
		line = append(line, "--env", e)
	}
	return Command{Netns: g.pod, Args: append(append(line, "pod"), args...)}.Output(t)
}
