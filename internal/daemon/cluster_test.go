package daemon

import (
	"context"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodens-dns/nodens/internal/upstream"
)

// account is the service account of a pretended API server, which answers every
// list with answer and keeps watches open.
func account(t *testing.T, answer string) (dir string, env map[string]string) {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, answer)
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	dir = t.TempDir()
	for name, text := range map[string]string{
		"token":  "secret",
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return dir, map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "NODE_ZONE": "b"}
}

const twoZones = `{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"},"addressType":"IPv4",
"ports":[{"name":"dns","port":53,"protocol":"UDP"},{"name":"dns-tcp","port":53,"protocol":"TCP"}],
"endpoints":[{"addresses":["10.0.2.7"],"zone":"a"},{"addresses":["10.0.3.8"],"zone":"b"}]}]}`

// clusterDaemon has of a daemon what learns endpoints.
func clusterDaemon(t *testing.T, account, zone string, env map[string]string) (*daemon, *endpointNews) {
	t.Helper()
	news := make(endpointNews, 10)
	log, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	o := &Options{Cluster: ClusterOptions{Account: account, Zone: zone}, Getenv: func(name string) string { return env[name] }}
	d := &daemon{
		opts: o, log: slog.New(news),
		redirect: newRedirector(log, reg, 1, ""), cluster: newClusterMetrics(reg),
	}
	d.pools = newPools(t.Context(), log, upstream.NewMetrics(reg))
	d.pools.changed = func() {}
	return d, &news
}

// endpointNews is a log handler that tells when endpoints were learnt.
type endpointNews chan struct{}

func (endpointNews) Enabled(context.Context, slog.Level) bool { return true }
func (n endpointNews) WithAttrs([]slog.Attr) slog.Handler     { return n }
func (n endpointNews) WithGroup(string) slog.Handler          { return n }
func (n endpointNews) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "endpoints of the cluster's DNS learnt" {
		n <- struct{}{}
	}
	return nil
}

// What the API server names becomes redirection's fallbacks, those of the node's
// zone first, and stays when it is no longer followed.
func TestFollowEndpoints(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.2.7:53"), netip.MustParseAddrPort("10.0.3.8:53")
	for _, tt := range []struct {
		zone string
		want []netip.AddrPort
	}{
		{"", []netip.AddrPort{b, a}}, // $NODE_ZONE
		{"a", []netip.AddrPort{a, b}},
	} {
		dir, env := account(t, twoZones)
		d, news := clusterDaemon(t, dir, tt.zone, env)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); d.followEndpoints(ctx) }()
		select {
		case <-*news:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is learnt")
		}
		cancel()
		<-done
		if !slices.Equal(d.redirect.learnt, tt.want) {
			t.Errorf("zone %q: learnt %v, want %v", tt.zone, d.redirect.learnt, tt.want)
		}
		if n := testutil.ToFloat64(d.cluster.endpoints); n != 2 {
			t.Errorf("%v endpoints counted", n)
		}
	}
}

// Outside a cluster, or without a service account, there is nothing to follow.
func TestNoAccountNoEndpoints(t *testing.T) {
	dir, env := account(t, twoZones)
	for _, tt := range []struct {
		dir string
		env map[string]string
	}{{dir, nil}, {t.TempDir(), env}} {
		d, _ := clusterDaemon(t, tt.dir, "", tt.env)
		d.followEndpoints(t.Context()) // returns
		if d.redirect.learnt != nil {
			t.Errorf("learnt %v", d.redirect.learnt)
		}
	}
}

// Only who has a use for the endpoints asks the API server.
func TestWantsEndpoints(t *testing.T) {
	for flags, want := range map[string]bool{
		"-localip 169.254.20.10":                                                             false,
		"-localip 169.254.20.10 -redirect on -node-ip 192.0.2.1":                             true,
		"-localip 169.254.20.10 -redirect auto -node-ip 192.0.2.1":                           true,
		"-localip 169.254.20.10 -redirect on -node-ip 192.0.2.1 -redirect-fallback 10.0.2.7": false,
	} {
		p, _ := plan(t, ". {\n whoami\n}\n", flags, nil)
		if got := wantsEndpoints(&app{plan: p}); got != want {
			t.Errorf("%s: %t", flags, got)
		}
		if !wantsEndpoints(&app{plan: p, asksEndpoints: true}) {
			t.Errorf("%s: a forward gets no endpoints", flags)
		}
	}
}
