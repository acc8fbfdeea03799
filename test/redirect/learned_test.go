package redirect

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/lab"
)

// apiServer starts an API server in the node's namespace. Its only endpoint of the
// cluster's DNS is lab.Endpoint. It returns flags and environment for the daemon.
func (n *node) apiServer(t *testing.T) (flags, env []string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"kube-dns-x"},"addressType":"IPv4",
				"endpoints":[{"addresses":["%s"],"conditions":{"ready":true}}],"ports":[{"name":"dns","port":53,"protocol":"UDP"}]}]}`, lab.Endpoint)
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s.EnableHTTP2 = true
	_ = s.Listener.Close()
	err := n.Node.Do(func() (err error) {
		s.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	dir := t.TempDir()
	lab.WriteFile(t, filepath.Join(dir, "token"), "secret")
	lab.WriteFile(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	_, port, _ := strings.Cut(s.Listener.Addr().String(), ":")
	return []string{"-service-account", dir}, []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=" + port}
}

// Pods fall back to the endpoints that the API server returned, even if it is down
// afterwards. Without an API server they fall back to the upstreams of the cluster
// domain.
func TestLearnedFallback(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	flags, env := n.apiServer(t)
	gone := []string{env[0], "KUBERNETES_SERVICE_PORT=1"}
	cluster := "cluster.local {\n    bind " + vip + "\n    forward . " + lab.ClusterDNS + "\n}\n"
	for _, tc := range []struct {
		name       string
		flags, env []string
		known      float64
		want       string
	}{
		{"an API server that never answered", flags, gone, 0, lab.ClusterDNS},
		{"no service account", []string{"-service-account", t.TempDir()}, env, 0, lab.ClusterDNS},
		{"API server", flags, env, 1, lab.Endpoint},
		{"the API server is down", flags, gone, 0, lab.Endpoint},
		{"the service account is removed", []string{"-service-account", t.TempDir()}, env, 0, lab.ClusterDNS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := lab.StartDaemon(t, lab.DaemonOptions{
				Binary: binary(t), Netns: n.Node, Corefile: redirecting(cluster+corefile, "on"), Env: tc.env,
				Args: n.args(tc.flags...),
			})
			n.Node.WaitForMetric(t, metrics, tc.known, "nodens_kube_endpoints")
			n.expect(t, "alive", vip, ownAnswer)
			d.Kill()
			n.expect(t, "killed", vip, tc.want)
		})
	}
}

// A service at the cluster IP of the cluster's DNS falls back to the endpoints when
// nodens dies. The service proxy gets it back after a normal stop, and when nodens
// has been dead for long, because nothing updates the endpoints then.
func TestClusterIPIsLeftAlone(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	flags, env := n.apiServer(t)
	start := func() *lab.Daemon {
		d := lab.StartDaemon(t, lab.DaemonOptions{
			Binary: binary(t), Netns: n.Node, Corefile: redirecting(corefile, "on", "service "+lab.ClusterDNS), Env: append(env, "KUBE_DNS_SERVICE_HOST="+lab.ClusterDNS),
			Args: n.args(flags...),
		})
		n.Node.WaitForMetric(t, metrics, 1, "nodens_kube_endpoints")
		n.expect(t, "alive", lab.ClusterDNS, ownAnswer)
		return d
	}
	start().Kill()
	n.expect(t, "killed", lab.ClusterDNS, lab.Endpoint)
	n.ageHeartbeat(t, 2*bpf.LongGone)
	n.expect(t, "long dead", lab.ClusterDNS, lab.ClusterDNS)
	d := start()
	d.Signal(t, syscall.SIGTERM)
	if status := d.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM", status)
	}
	n.expect(t, "ended", lab.ClusterDNS, lab.ClusterDNS)
}

// pinned returns the path of a pinned map.
func (n *node) pinned(t *testing.T, name string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(n.pinDir, "v*", name))
	if len(found) != 1 {
		t.Fatalf("pins of %s: %v", name, found)
	}
	return found[0]
}

// Without nodens for long, pods use the cluster IP instead of endpoints that may be
// gone.
func TestLastResort(t *testing.T) {
	n := newNode(t, lab.RouteFIB)
	flags, env := n.apiServer(t)
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: binary(t), Netns: n.Node, Corefile: redirecting(corefile, "on"), Env: append(env, "KUBE_DNS_SERVICE_HOST="+lab.ClusterDNS),
		Args: n.args(flags...),
	})
	n.Node.WaitForMetric(t, metrics, 1, "nodens_kube_endpoints")
	n.expect(t, "alive", vip, ownAnswer)
	d.Kill()
	n.expect(t, "killed", vip, lab.Endpoint)
	n.ageHeartbeat(t, 2*bpf.LongGone)
	n.expect(t, "dead for two minutes", vip, lab.Endpoint)
	n.ageHeartbeat(t, 2*bpf.Lost)
	n.expect(t, "long dead", vip, lab.ClusterDNS)
}

// ageHeartbeat sets the age of a dead daemon's last heartbeat.
func (n *node) ageHeartbeat(t *testing.T, age time.Duration) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(n.pinned(t, "heartbeat"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	if err := m.Put(uint32(0), uint64(now.Nano()-age.Nanoseconds())); err != nil {
		t.Fatal(err)
	}
}
