package daemon

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// account returns the directory and environment of a service account for a fake API
// server. The server replies to each list with answer and keeps watches open.
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

// newFollower returns a follower and a channel with the endpoints that it learns.
func newFollower(account, zone string, env map[string]string) (*endpointFollower, <-chan []netip.AddrPort) {
	learned := make(chan []netip.AddrPort, 10)
	o := &Options{Cluster: ClusterOptions{Account: account, Zone: zone}, Getenv: func(name string) string { return env[name] }, Stderr: io.Discard}
	ignore := func([]netip.AddrPort) error { return nil }
	return newEndpointFollower(newBase(o), func(e []netip.AddrPort) error { learned <- e; return nil }, ignore), learned
}

// The API server's endpoints become redirection's fallbacks, those of the node's zone
// first.
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
		f, learned := newFollower(dir, tt.zone, env)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.run(ctx) }()
		var got []netip.AddrPort
		select {
		case got = <-learned:
		case <-time.After(30 * time.Second):
			t.Fatal("no endpoints are learned")
		}
		cancel()
		<-done
		if !slices.Equal(got, tt.want) {
			t.Errorf("zone %q: learned %v, want %v", tt.zone, got, tt.want)
		}
		if n := testutil.ToFloat64(f.endpoints); n != 2 {
			t.Errorf("%v endpoints counted", n)
		}
	}
}

// Outside a cluster, or without a service account, nothing is followed.
func TestNoAccountNoEndpoints(t *testing.T) {
	dir, env := account(t, twoZones)
	for _, tt := range []struct {
		dir string
		env map[string]string
	}{{dir, nil}, {t.TempDir(), env}} {
		f, learned := newFollower(tt.dir, "", tt.env)
		f.run(t.Context()) // returns
		if len(learned) > 0 {
			t.Errorf("learned %v", <-learned)
		}
	}
}

// The daemon watches endpoints only if redirection or a forward uses them.
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
		a := &app{plan: redirect.Plan{Mode: tt.mode, FixedFallbacks: tt.fixedFallbacks}}
		if got := a.wantsEndpoints(); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
		a.usesEndpoints = true
		if !a.wantsEndpoints() {
			t.Errorf("%+v: a forward gets no endpoints", tt)
		}
	}
}
