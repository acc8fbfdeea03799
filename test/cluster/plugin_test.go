package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
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
	testDoctor(t)
	if _, status := plugin(t, "upgrade-check"); status != 0 {
		t.Errorf("upgrade-check: exit status %d", status)
	}
}

// testDoctor gets a report from each node.
func testDoctor(t *testing.T, options ...string) {
	t.Helper()
	var diagnosis struct {
		Nodes    int
		Findings []struct{ ID, Severity string }
		Errors   []any
	}
	pluginJSON(t, &diagnosis, append(options, "doctor")...)
	if diagnosis.Nodes != len(nodes) || len(diagnosis.Errors) > 0 {
		t.Errorf("doctor: %+v", diagnosis)
	}
	for _, f := range diagnosis.Findings {
		if f.Severity != "note" {
			t.Errorf("doctor finds %+v", f)
		}
	}
}

// TestBypassedStubDomain: the plugin names a stub domain of CoreDNS's own Corefile.
func TestBypassedStubDomain(t *testing.T) {
	needCluster(t)
	waitForRollout(t, "nodens")
	corefile := kubectl(t, "-n", "kube-system", "get", "configmap", "coredns", "-o", corefileKey)
	t.Cleanup(func() { putCorefile(t, "coredns", corefile) })
	for _, stub := range []string{"", "\nstub.example:53 {\n    forward . " + os.Getenv("STUB") + "\n}\n"} {
		putCorefile(t, "coredns", corefile+stub)
		out, _ := plugin(t, "doctor")
		if found := strings.Contains(out, "stub-domain-bypassed") && strings.Contains(out, "stub.example"); found != (stub != "") {
			t.Errorf("with the block %q:\n%s", stub, out)
		}
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

// pluginRole lets the ServiceAccount plugin list pods and do what rules say, until the
// test ends. It returns the options of the plugin that act as this account.
func pluginRole(t *testing.T, rules string) []string {
	t.Helper()
	t.Cleanup(func() {
		_, _ = try("-n", "kube-system", "delete", "serviceaccount/plugin", "role/plugin", "rolebinding/plugin", "--ignore-not-found")
	})
	apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: plugin, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: plugin, namespace: kube-system}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}`+rules+`]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: plugin, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: plugin}
subjects: [{kind: ServiceAccount, name: plugin, namespace: kube-system}]
`)
	return []string{"--as", "system:serviceaccount:kube-system:plugin"}
}

// TestPluginRights uses the plugin with a role that allows only executing commands in
// pods, and with one that does not allow this either.
func TestPluginRights(t *testing.T) {
	needCluster(t)
	waitForRollout(t, "nodens")
	as := pluginRole(t, `, {apiGroups: [""], resources: [pods/exec], verbs: [create]}`)
	waitFor(t, "status with pods/exec", func() (bool, string) {
		out, status := plugin(t, append(as, "status")...)
		return status == 0, out
	})
	pluginRole(t, "")
	waitFor(t, "error that names the verbs", func() (bool, string) {
		out, status := plugin(t, append(as, "status")...)
		return status == 1 && strings.Contains(out, "pods/exec"), out
	})
}

// TestPluginProxy uses the plugin with a role that allows the API server's proxy, but no
// commands in pods.
func TestPluginProxy(t *testing.T) {
	needCluster(t)
	as := pluginRole(t, `, {apiGroups: [""], resources: [pods/proxy], verbs: [get]}, {apiGroups: [""], resources: [secrets], resourceNames: [status], verbs: [get]}`)
	waitFor(t, "error that names the flags", func() (bool, string) {
		out, status := plugin(t, append(as, "status")...)
		return status == 1 && strings.Contains(out, "-status-address"), out
	})
	t.Cleanup(func() {
		upgrade(t)
		kubectl(t, "-n", "kube-system", "delete", "secret", "status")
	})
	kubectl(t, "-n", "kube-system", "create", "secret", "generic", "status", "--from-literal=token=4711")
	upgrade(t, "--set", "status.address=0.0.0.0:9354", "--set", "status.tokenSecret=status")
	waitForDNS(t)
	waitFor(t, "status with pods/proxy", func() (bool, string) {
		out, status := plugin(t, append(as, "status")...)
		return status == 0, out
	})
	var merged state.State
	pluginJSON(t, &merged, append(as, "top")...)
	if merged.Requests == 0 || len(merged.Problems) > 0 {
		t.Errorf("top has %d requests, problems %q", merged.Requests, merged.Problems)
	}
	testDoctor(t, as...)
	wrong := lab.WriteFile(t, filepath.Join(t.TempDir(), "token"), "42")
	if out, status := plugin(t, append(as, "status", "--status-token-file", wrong)...); status != 1 || !strings.Contains(out, "does not have the token") {
		t.Errorf("with a wrong token: exit status %d:\n%s", status, out)
	}
}
