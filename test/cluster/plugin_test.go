package cluster

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/state"
)

// plugin runs kubectl nodens, logs its output, and returns it with the exit status.
func plugin(t *testing.T, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "run", "kubectl-nodens"), append(args, "--node-timeout", timeout.String())...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	t.Logf("kubectl nodens %s\n%s%s", strings.Join(args, " "), out, errs.String())
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// pluginJSON runs a command of the plugin and reads its output.
func pluginJSON(t *testing.T, to any, args ...string) {
	t.Helper()
	out, status := plugin(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), to); err != nil {
		t.Fatalf("exit status %d: %v", status, err)
	}
}

// TestPlugin runs each command of kubectl nodens.
func TestPlugin(t *testing.T) {
	needCluster(t)
	waitForRollout(t, "nodens")
	if _, status := plugin(t, "status"); status != 0 {
		t.Errorf("status: exit status %d", status)
	}
	var nodeStates []struct {
		Error string
		State *state.State
	}
	pluginJSON(t, &nodeStates, "status")
	if len(nodeStates) != len(nodes) {
		t.Errorf("status has %d nodes, want %d", len(nodeStates), len(nodes))
	}
	for _, n := range nodeStates {
		if n.State == nil || !n.State.Ready || n.State.Version == "" {
			t.Errorf("status: %+v", n)
		}
	}
	t.Run("test", testClientPods)
	var merged state.State
	pluginJSON(t, &merged, "top")
	if !slices.ContainsFunc(merged.Top["60m"].Names, func(e state.Entry) bool { return e.Key == "kubernetes.default.svc.cluster.local." }) {
		t.Errorf("top has no name of the test: %+v", merged.Top["60m"].Names)
	}
	var diagnosis struct {
		Nodes  int
		Errors []any
	}
	pluginJSON(t, &diagnosis, "doctor")
	if diagnosis.Nodes != len(nodes) || len(diagnosis.Errors) > 0 {
		t.Errorf("doctor: %+v", diagnosis)
	}
	if _, status := plugin(t, "upgrade-check"); status != 0 {
		t.Errorf("upgrade-check: exit status %d", status)
	}
}

// testClientPods looks up names in pods with musl and glibc on each node. The name has a
// dot at its end, see loadDNS.
func testClientPods(t *testing.T) {
	out, status := plugin(t, "test", "--image", "localhost/client:1=musl-lookup", "--image", "localhost/client:1=glibc-lookup", "--name", "www.example.test.")
	if status != 0 || strings.Count(out, "4 of 4") != 2*len(nodes) {
		t.Errorf("exit status %d:\n%s", status, out)
	}
	if left := kubectl(t, "get", "pods", "-A", "-l", "app.kubernetes.io/name=kubectl-nodens-test", "-o", "name"); left != "" {
		t.Errorf("pods are left: %s", left)
	}
}

// TestPluginRights uses the plugin with a role that allows only executing commands in
// pods.
func TestPluginRights(t *testing.T) {
	needCluster(t)
	waitForRollout(t, "nodens")
	role := func(rules string) string {
		return `
apiVersion: v1
kind: ServiceAccount
metadata: {name: plugin, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: plugin, namespace: kube-system}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}` + rules + `]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: plugin, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: plugin}
subjects: [{kind: ServiceAccount, name: plugin, namespace: kube-system}]
`
	}
	t.Cleanup(func() {
		_, _ = try("-n", "kube-system", "delete", "serviceaccount/plugin", "role/plugin", "rolebinding/plugin", "--ignore-not-found")
	})
	as := []string{"status", "--as", "system:serviceaccount:kube-system:plugin"}
	apply(t, role(`, {apiGroups: [""], resources: [pods/exec], verbs: [create]}`))
	waitFor(t, "status with pods/exec", func() (bool, string) {
		out, status := plugin(t, as...)
		return status == 0, out
	})
	apply(t, role(""))
	waitFor(t, "error that names the verbs", func() (bool, string) {
		out, status := plugin(t, as...)
		return status == 1 && strings.Contains(out, "pods/exec"), out
	})
}
