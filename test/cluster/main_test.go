// Package cluster tests nodens in a Kubernetes cluster of two emulated nodes. up.sh
// starts the cluster, and run.sh runs these tests in its network namespace.
package cluster

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// dir is CLUSTER_DIR of env.sh. It is empty if there is no cluster.
var dir = os.Getenv("NODENS_CLUSTER")

// Every wait has this timeout. The nodes are emulated, and the machine may be busy.
const timeout = 10 * time.Minute

// Addresses of env.sh: of nodens, and the cluster IP of CoreDNS.
var localIP, kubeDNS = os.Getenv("LOCAL_DNS"), os.Getenv("KUBE_DNS")

var nodes = []string{"1", "2"}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(lab.Main(m)) // in a pod, it is a client
}

func needCluster(t *testing.T) {
	t.Helper()
	if dir == "" {
		t.Skip("no cluster: run make cluster")
	}
}

// try runs kubectl.
func try(args ...string) (string, error) {
	return command("kube", append([]string{"kubectl"}, args...)...)
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply gives manifests to kubectl apply.
func apply(t *testing.T, text string) {
	t.Helper()
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "manifest.yaml"), text)
	kubectl(t, "apply", "-f", file)
}

func helm(t *testing.T, args ...string) {
	t.Helper()
	if _, err := command("helm", append(args, "--namespace", "kube-system")...); err != nil {
		t.Fatal(err)
	}
}

func command(program string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(dir, "bin", program), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, errs.String())
	}
	return string(out), nil
}

// waitFor waits until ok returns true. ok also returns what it sees.
func waitFor(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		done, seen := ok()
		if done {
			return
		}
		select {
		case <-time.After(2 * time.Second):
		case <-deadline:
			t.Fatalf("no %s after %v: %s", what, timeout, seen)
		}
	}
}

// waitForRollout waits until the pods of nodens are those of its DaemonSet and ready.
func waitForRollout(t *testing.T, daemonSet string) {
	t.Helper()
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/"+daemonSet, "--timeout", timeout.String())
}

var exitStatus = regexp.MustCompile(`(?m)^exit status (\d+)\n\z`)

// onNode runs a shell script as root on a node and returns its output.
func onNode(t *testing.T, node, script string) string {
	t.Helper()
	out, err := tryOnNode(node, script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryOnNode(node, script string) (string, error) {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(os.Getenv("WORLD")+node, "2222"), lab.QueryTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	fmt.Fprintf(c, "( %s\n) 2>&1; echo exit status $?; exit\n", script)
	var b strings.Builder
	buf := make([]byte, 4096)
	for err == nil {
		var n int
		n, err = c.Read(buf)
		b.Write(buf[:n])
	}
	out := b.String()
	m := exitStatus.FindStringSubmatch(out)
	if m == nil || m[1] != "0" {
		return out, fmt.Errorf("on node %s: %s\n%s", node, script, out)
	}
	return strings.TrimSuffix(out, m[0]), nil
}
