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

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
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
		redirect: redirect.New(redirect.Config{Logger: log, Registerer: reg, Workers: 1}), cluster: newClusterMetrics(reg),
	}
	d.pools = newPools(t.Context(), log, upstream.NewMetrics(reg))
	d.pools.changed = func() {}
	return d, &news
}

// endpointNews is a log handler that delivers the learned endpoints.
type endpointNews chan []netip.AddrPort

func (endpointNews) Enabled(context.Context, slog.Level) bool { return true }
func (n endpointNews) WithAttrs([]slog.Attr) slog.Handler     { return n }
func (n endpointNews) WithGroup(string) slog.Handler          { return n }
func (n endpointNews) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "endpoints of the cluster's DNS learnt" {
		r.Attrs(func(a slog.Attr) bool {
			if addrs, ok := a.Value.Any().([]netip.AddrPort); ok {
				n <- addrs
			}
			return true
		})
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
		var got []netip.AddrPort
		select {
		case got = <-*news:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is learnt")
		}
		cancel()
		<-done
		if !slices.Equal(got, tt.want) {
			t.Errorf("zone %q: learned %v, want %v", tt.zone, got, tt.want)
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
		d, news := clusterDaemon(t, tt.dir, "", tt.env)
		d.followEndpoints(t.Context()) // returns
		if len(*news) > 0 {
			t.Errorf("learned %v", <-*news)
		}
	}
}

// Only who has a use for the endpoints asks the API server.
func TestWantsEndpoints(t *testing.T) {
	for _, tt := range []struct {
		mode           config.RedirectMode
		fixedFallbacks bool
		want           bool
	}{
		{config.RedirectOff, false, false},
		{config.RedirectOn, false, true},
		{config.RedirectAuto, false, true},
		{config.RedirectOn, true, false},
	} {
		p := redirect.Plan{Mode: tt.mode, FixedFallbacks: tt.fixedFallbacks}
		if got := wantsEndpoints(&app{plan: p}); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
		if !wantsEndpoints(&app{plan: p, asksEndpoints: true}) {
			t.Errorf("%+v: a forward gets no endpoints", tt)
		}
	}
}
