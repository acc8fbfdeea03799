package daemon

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/internal/querystats"
	"github.com/nodens-dns/nodens/internal/redirect"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/state"
)

// newTestStatus returns the status server of a daemon without queries, at an address
// that the caller listens on.
func newTestStatus(t *testing.T, status StatusOptions) *statusServer {
	t.Helper()
	b := newBase(&Options{Status: status, Version: "test", Getenv: func(string) string { return "node-1" }, Stderr: t.Output()})
	if _, err := server.NewMetrics(b.registry, 1); err != nil {
		t.Fatal(err)
	}
	store := cache.New(cache.Options{})
	r := newReporter(b, new(probeState), newPools(t.Context(), poolsConfig{Logger: b.log}), redirect.New(redirect.Config{Logger: b.log, Registerer: b.registry}),
		fastpath.New(b.log, b.registry, 0, fastpath.Plan{Mode: config.FastpathOff}, nil), newCacheMetrics(b.registry, store), querystats.New(time.Now()))
	cfg, err := config.Parse("Corefile", ".:53 {\n\tbind 192.0.2.1\n}\n", config.Source{})
	if err != nil {
		t.Fatal(err)
	}
	r.use(cfg)
	return newStatusServer(b, r)
}

func serveStatus(t *testing.T, s *statusServer) *httptest.Server {
	t.Helper()
	web := httptest.NewServer(muxesOf(s.endpoints())[s.opts.Status.Address])
	t.Cleanup(web.Close)
	return web
}

func getState(t *testing.T, web *httptest.Server) (*state.State, error) {
	t.Helper()
	answer, err := web.Client().Get(web.URL + state.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return state.Read(answer.Body)
}

func TestState(t *testing.T) {
	status := newTestStatus(t, StatusOptions{Address: "127.0.0.1:9354"})
	web := serveStatus(t, status)
	s, err := getState(t, web)
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != "test" || s.Node != "node-1" || s.Ready || !strings.Contains(s.Corefile, "bind") || !slices.Equal(s.Addresses, []string{"192.0.2.1:53"}) || s.Redirection.State != "off" || s.Fastpath.State != "off" {
		t.Errorf("%+v", s)
	}
	stats := status.reporter.queries
	client := netip.MustParseAddr("10.0.0.1")
	stats.Add([]querystats.Sample{{Name: []byte("\x03www\x00"), Client: client, Zone: stats.Zone("."), Weight: 3, NXDomain: true, Waited: true}}, time.Second, time.Now())
	if s, err = getState(t, web); err != nil || len(s.Top["1m"].Names) != 0 {
		t.Errorf("lists are made for each viewer: %v, %v", s.Top, err)
	}
	status.reporter.mu.Lock()
	status.reporter.last.Time = time.Time{}
	status.reporter.mu.Unlock()
	if s, err = getState(t, web); err != nil {
		t.Fatal(err)
	}
	for _, w := range state.Windows() {
		l := s.Top[w]
		name := state.Entry{Key: "www.", Zone: ".", Count: 3}
		slow := name
		slow.Seconds = 3
		if l.Queries != 3 || l.Covers <= 0 || !slices.Equal(l.Names, []state.Entry{name}) || !slices.Equal(l.NXDomain, []state.Entry{name}) ||
			!slices.Equal(l.Slow, []state.Entry{slow}) || !slices.Equal(l.Clients, []state.Entry{{Key: "10.0.0.1", Count: 3}}) {
			t.Errorf("%s: %+v", w, l)
		}
	}
	n, enough := 0, errors.New("enough")
	err = state.Follow(t.Context(), web.URL, "", func(s *state.State) error {
		if n++; n == 2 {
			return enough
		}
		return nil
	})
	if err != enough {
		t.Errorf("%d events: %v", n, err)
	}
}

// The server answers only GET requests with the right host and token.
func TestStatusIsGuarded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := StatusOptions{Address: "127.0.0.1:9354"}
	guarded := StatusOptions{Address: "0.0.0.0:9354", TokenFile: file}
	for _, tt := range []struct {
		options             StatusOptions
		method, host, token string
		want                int
	}{
		{open, "GET", "127.0.0.1:9354", "", 200},
		{open, "HEAD", "localhost:8001", "", 200},
		{open, "GET", "[::1]", "", 200},
		{open, "POST", "127.0.0.1:9354", "", 405},
		{open, "GET", "rebound.example:9354", "", 421},
		{guarded, "GET", "node.example", "secret", 200},
		{guarded, "GET", "node.example", "", 401},
		{guarded, "GET", "127.0.0.1", "wrong", 401},
		{StatusOptions{Address: "0.0.0.0:9354", TokenFile: file + ".gone"}, "GET", "node", "", 500},
	} {
		web := serveStatus(t, newTestStatus(t, tt.options))
		r, err := http.NewRequestWithContext(t.Context(), tt.method, web.URL+state.Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = tt.host
		r.Header.Set(state.TokenHeader, tt.token)
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != tt.want || got.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(got.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%+v: %s, %v", tt, got.Status, got.Header)
		}
	}
}

func TestZonesOfUpstreams(t *testing.T) {
	cfg, err := config.Parse("Corefile", `cluster.local in-addr.arpa {
	forward . 192.0.2.1
}
ip6.arpa {
	forward . 192.0.2.1
}
. {
	forward . 192.0.2.2
	forward example.com 192.0.2.1
}
`, config.Source{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"cluster.local. in-addr.arpa. ip6.arpa.", "cluster.local. in-addr.arpa. ip6.arpa.", "."} {
		if got := zonesOf(cfg, cfg.Blocks[i].Forwards[0]); got != want {
			t.Errorf("block %d: %q, want %q", i, got, want)
		}
	}
	if got := zonesOf(cfg, cfg.Blocks[2].Forwards[1]); got != "example.com." {
		t.Errorf("own zone: %q", got)
	}
}

// The page needs no token: it has no data and prompts for the token.
func TestPageNeedsNoToken(t *testing.T) {
	s := newTestStatus(t, StatusOptions{Address: "0.0.0.0:9354", TokenFile: "/nonexistent"})
	for path, want := range map[string]int{"/": 200, "/else": 404, "/api/v1/findings": 500} {
		w := httptest.NewRecorder()
		muxesOf(s.endpoints())["0.0.0.0:9354"].ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if w.Code != want {
			t.Errorf("%s: status %d, want %d", path, w.Code, want)
		}
		if p := w.Header().Get("Content-Security-Policy"); path == "/" && (!strings.Contains(p, "sha256-") || strings.Contains(p, "unsafe")) {
			t.Errorf("%s: policy %q", path, p)
		}
	}
}

// The server refuses the 17th client of the event stream until another disconnects.
func TestEventsAreBounded(t *testing.T) {
	s := newTestStatus(t, StatusOptions{Address: "127.0.0.1:9354"})
	web := serveStatus(t, s)
	for range maxFollowers {
		s.followers <- struct{}{}
	}
	if err := state.Follow(t.Context(), web.URL, "", nil); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("one client too many: %v", err)
	}
	<-s.followers
	stop := errors.New("stop")
	if err := state.Follow(t.Context(), web.URL, "", func(*state.State) error { return stop }); err != stop {
		t.Errorf("after one has left: %v", err)
	}
}

func TestCheckStatus(t *testing.T) {
	for _, tt := range []struct {
		options StatusOptions
		want    string
	}{
		{StatusOptions{}, ""},
		{StatusOptions{Address: "127.0.0.1:9354"}, ""},
		{StatusOptions{Address: "[::1]:9354"}, ""},
		{StatusOptions{Address: "localhost:9354"}, ""},
		{StatusOptions{Address: ":9354", TokenFile: "/etc/token"}, ""},
		{StatusOptions{Address: ":9354"}, "-status-address :9354: pods can reach this address and read the queries of other pods; use 127.0.0.1, or set -status-token-file"},
		{StatusOptions{Address: "10.0.0.1:9354"}, "set -status-token-file"},
		{StatusOptions{Address: "9354"}, "want IP:port"},
		{StatusOptions{Address: "node.example:9354"}, "want IP:port"},
		{StatusOptions{Address: "127.0.0.1:http"}, "want IP:port"},
	} {
		err := (&Options{Status: tt.options}).CheckStatus()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.options, err, tt.want)
		}
	}
}

// A port of two optional addresses is open at both, as -metrics-listen-address and
// -status-address are after nodens migrate.
func TestOptionalAddressesShareAPort(t *testing.T) {
	free, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	var endpoints []endpoint
	for _, host := range []string{"0.0.0.0", "127.0.0.1"} {
		endpoints = append(endpoints, endpoint{addr: net.JoinHostPort(host, port), path: "/", handler: http.NotFoundHandler(), optional: true})
	}
	a := newAdminServers(slog.New(slog.DiscardHandler))
	commit, _, err := a.prepare(t.Context(), endpoints)
	if err != nil {
		t.Fatal(err)
	}
	commit()
	for _, e := range endpoints {
		if a.byAddr[e.addr].ln.Addr() == nil {
			t.Errorf("%s is not open", e.addr)
		}
	}
	if commit, _, err = a.prepare(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	commit()
}

// A reload may put a required endpoint on the port of the status address. If it fails
// afterwards, the status address is served as before.
func TestReloadTakesPortOfStatusAddress(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	a := newAdminServers(slog.New(slog.DiscardHandler))
	defer func() { _ = a.close(t.Context()) }()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	apply := func(endpoints []endpoint, use bool) {
		t.Helper()
		commit, abort, err := a.prepare(t.Context(), endpoints)
		switch {
		case err != nil:
			t.Fatal(err)
		case use:
			commit()
		default:
			abort()
		}
		for addr := range a.byAddr {
			answer, err := client.Get("http://" + addr + "/")
			if err != nil || answer.StatusCode != http.StatusTeapot {
				t.Fatalf("%s: %v, %v", addr, answer, err)
			}
			_ = answer.Body.Close()
		}
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	_, port, _ := net.SplitHostPort(free.Addr().String())
	status := endpoint{addr: free.Addr().String(), path: "/", handler: handler, optional: true}
	apply([]endpoint{status}, true)
	for _, addr := range []string{"0.0.0.0:" + port, status.addr} {
		both := []endpoint{status, {addr: addr, path: "/metrics", handler: handler}}
		apply(both, false)
		if len(a.byAddr) != 1 || !a.byAddr[status.addr].sole {
			t.Errorf("after a failed reload to %s: %v", addr, a.byAddr)
		}
		apply(both, true)
		if a.byAddr[addr] == nil || a.byAddr[status.addr].sole {
			t.Errorf("after a reload to %s: %v", addr, a.byAddr)
		}
		apply(nil, true)
		apply([]endpoint{status}, true)
	}
	// An open server becomes a required one.
	apply([]endpoint{status, {addr: "0.0.0.0:" + port, path: "/metrics", handler: handler}}, true)
	apply([]endpoint{status, {addr: status.addr, path: "/metrics", handler: handler}}, true)
	if a.byAddr[status.addr].late {
		t.Error("a required address has the limits of an optional one")
	}
}

// If another process uses the status address, the daemon serves without it, and takes it
// later. Shutdown ends event streams.
func TestStatusAddressIsOptional(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0") // without SO_REUSEPORT
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := newTestStatus(t, StatusOptions{Address: taken.Addr().String()})
	a := newAdminServers(s.log)
	a.retry = 10 * time.Millisecond
	commit, _, err := a.prepare(t.Context(), s.endpoints())
	if err != nil {
		t.Fatal(err)
	}
	commit()
	late := a.byAddr[s.opts.Status.Address].ln
	if late.Addr() != nil {
		t.Error("the taken address is served")
	}
	_ = taken.Close()
	for end := time.Now().Add(time.Minute); ; <-time.After(a.retry) {
		r, err := http.Get("http://" + taken.Addr().String() + "/")
		if err == nil {
			_ = r.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the address is not taken: %v", err)
		}
	}
	s.opts.Status.Address = "127.0.0.1:0"
	if commit, _, err = a.prepare(t.Context(), s.endpoints()); err != nil {
		t.Fatal(err)
	}
	commit()
	at := a.byAddr[s.opts.Status.Address].ln.Addr()
	err = state.Follow(t.Context(), "http://"+at.String(), "", func(*state.State) error {
		go func() { _ = a.close(t.Context()) }()
		return nil
	})
	if err == nil {
		t.Error("the stream goes on")
	}
}

// A client that does not send its request's body holds its connection for a while only.
func TestUnsentBody(t *testing.T) {
	t.Parallel()
	s := newTestStatus(t, StatusOptions{Address: "127.0.0.1:0"})
	a := newAdminServers(s.log)
	commit, _, err := a.prepare(t.Context(), s.endpoints())
	if err != nil {
		t.Fatal(err)
	}
	commit()
	defer func() { _ = a.close(t.Context()) }()
	conn, err := net.Dial("tcp", a.byAddr[s.opts.Status.Address].ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err = conn.Write([]byte("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection stays open: %v", err)
	}
}
