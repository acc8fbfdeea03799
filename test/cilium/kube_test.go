package cilium

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// kube is an API server with etcd. No other part of Kubernetes runs: the test makes the
// objects that a kubelet and the controllers would make.
type kube struct {
	program, dir string
	netns        *lab.Netns
}

// startKube starts the API server at https://OutsideIP:6443.
func startKube(t *testing.T, program string, netns *lab.Netns) *kube {
	t.Helper()
	k := &kube{program, t.TempDir(), netns}
	lab.WriteFile(t, k.path("tokens"), "token,admin,admin,system:masters\n")
	lab.WriteFile(t, k.path("sa.key"), serviceAccountKey(t))
	lab.WriteFile(t, k.path("kubeconfig"), fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: c, cluster: {server: "https://%s:6443", insecure-skip-tls-verify: true}}],
users: [{name: admin, user: {token: token}}],
contexts: [{name: c, context: {cluster: c, user: admin}}]}
`, lab.OutsideIP))
	k.run(t, "etcd", "--data-dir", k.path("etcd"), "--unsafe-no-fsync")
	k.run(t, "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--cert-dir="+k.path("certs"),
		"--bind-address="+lab.OutsideIP, "--advertise-address="+lab.OutsideIP, "--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=RBAC", "--token-auth-file="+k.path("tokens"), "--disable-admission-plugins=ServiceAccount",
		"--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged=true",
		"--service-account-key-file="+k.path("sa.key"), "--service-account-signing-key-file="+k.path("sa.key"))
	waitFor(t, "the API server", func() bool { _, _, status := k.try(t, "get", "--raw", "/readyz"); return status == 0 })
	return k
}

func (k *kube) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kube) run(t *testing.T, args ...string) {
	t.Helper()
	lab.Command{Netns: k.netns, Args: append([]string{k.program}, args...)}.Start(t)
}

// try runs kubectl.
func (k *kube) try(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return lab.Command{
		Netns: k.netns, Args: append([]string{k.program, "kubectl"}, args...), Env: []string{"KUBECONFIG=" + k.path("kubeconfig")},
	}.Output(t)
}

func (k *kube) ctl(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, status := k.try(t, args...)
	if status != 0 {
		t.Fatalf("kubectl %v: %s", args, stderr)
	}
	return stdout
}

// apply applies a manifest. undo deletes its objects.
func (k *kube) apply(t *testing.T, manifest string) (undo func()) {
	t.Helper()
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "manifest.yaml"), manifest)
	k.ctl(t, "apply", "-f", file)
	return func() { t.Helper(); k.ctl(t, "delete", "-f", file) }
}

// serviceAccountKey is a key that the API server wants.
func serviceAccountKey(t *testing.T) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
}

// waitFor polls: what Cilium does gives no signal.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, timeout)
		case <-time.After(300 * time.Millisecond):
		}
	}
}
