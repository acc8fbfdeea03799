package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// hangTimeout is the timeout of a test that hangs.
const hangTimeout = 30 * time.Second

// apiServer passes its requests to the test, one after the other.
type apiServer struct {
	*httptest.Server
	account  Account
	requests chan *request
}

// request waits for the response of the test.
type request struct {
	query url.Values
	w     http.ResponseWriter
	gone  <-chan struct{} // closed when the client has disconnected
	done  chan struct{}
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{requests: make(chan *request)}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	a.EnableHTTP2 = true
	a.StartTLS()
	t.Cleanup(a.Close)
	a.account = Account{Server: a.Listener.Addr().String(), Dir: t.TempDir()}
	a.write(t, "token", "secret\n")
	a.write(t, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})))
	return a
}

func (a *apiServer) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.account.Dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serve refuses the requests that a real API server would refuse.
func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("Authorization") != "Bearer secret":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case r.URL.Path != "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices":
		w.WriteHeader(http.StatusNotFound)
		return
	case r.URL.Query().Get("labelSelector") != "kubernetes.io/service-name=kube-dns":
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	req := &request{query: r.URL.Query(), w: w, gone: r.Context().Done(), done: make(chan struct{})}
	select {
	case a.requests <- req:
		<-req.done
	case <-req.gone:
	}
}

// next waits for a list or a watch.
func (a *apiServer) next(t *testing.T, watch bool, version string) *request {
	t.Helper()
	select {
	case r := <-a.requests:
		if got := r.query.Get("watch") == "1"; got != watch || r.query.Get("resourceVersion") != version {
			t.Fatalf("request %v, want a watch %t from %q", r.query, watch, version)
		}
		return r
	case <-time.After(hangTimeout):
		t.Fatal("no request")
		return nil
	}
}

func (r *request) send(t *testing.T, text string) {
	t.Helper()
	if _, err := fmt.Fprintln(r.w, text); err != nil {
		t.Fatal(err)
	}
	r.w.(http.Flusher).Flush()
}

func (r *request) end() { close(r.done) }

func (r *request) list(t *testing.T, version string, items ...string) {
	t.Helper()
	r.send(t, `{"kind":"EndpointSliceList","metadata":{"resourceVersion":"`+version+`"},"items":[`+strings.Join(items, ",")+`]}`)
	r.end()
}

func (r *request) event(t *testing.T, kind, object string) {
	t.Helper()
	r.send(t, `{"type":"`+kind+`","object":`+object+`}`)
}

// slice is an EndpointSlice with the ports of kube-dns.
func slice(name, version, family string, endpoints ...string) string {
	return `{"metadata":{"name":"` + name + `","resourceVersion":"` + version + `"},"addressType":"` + family + `",` +
		`"endpoints":[` + strings.Join(endpoints, ",") + `],` +
		`"ports":[{"name":"metrics","port":9153,"protocol":"TCP"},{"name":"dns-tcp","port":53,"protocol":"TCP"},{"name":"dns","port":53,"protocol":"UDP"}]}`
}

func ready(ip string) string { return `{"addresses":["` + ip + `"],"conditions":{"ready":true}}` }

// watched is a running Watch.
type watched struct {
	calls  chan []netip.AddrPort
	errs   chan error
	cancel func()
	log    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startWatch(t *testing.T, account Account) *watched {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watched{calls: make(chan []netip.AddrPort, 10), errs: make(chan error, 1000), log: new(lockedBuffer)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, Config{
			Account: account, Namespace: "kube-system", Service: "kube-dns",
			MinDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond,
			Logger: slog.New(slog.NewTextHandler(w.log, nil)), OnError: w.record,
		}, func(addrs []netip.AddrPort) { w.calls <- addrs })
	}()
	w.cancel = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(w.cancel)
	return w
}

// record keeps err for wantError, unless the channel is full.
func (w *watched) record(err error) {
	select {
	case w.errs <- err:
	default:
	}
}

func (w *watched) want(t *testing.T, want ...string) {
	t.Helper()
	select {
	case got := <-w.calls:
		if !slices.Equal(texts(got), want) {
			t.Fatalf("servers %v, want %v", got, want)
		}
	case <-time.After(hangTimeout):
		t.Fatalf("no servers, want %v; log:\n%s", want, w.log)
	}
}

func (w *watched) wantError(t *testing.T, want string) {
	t.Helper()
	timeout := time.After(hangTimeout)
	for {
		select {
		case err := <-w.errs:
			if strings.Contains(err.Error(), want) {
				return
			}
		case <-timeout:
			t.Fatalf("no error %q; log:\n%s", want, w.log)
		}
	}
}

func (w *watched) wantNothing(t *testing.T) {
	t.Helper()
	w.cancel() // all calls are in the channel now
	if len(w.calls) > 0 {
		t.Errorf("servers %v", <-w.calls)
	}
}

func texts(addrs []netip.AddrPort) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

func TestFollowsSlices(t *testing.T) {
	a := newAPIServer(t)
	w := startWatch(t, a.account)
	a.next(t, false, "0").list(t, "10", slice("a", "9", "IPv4", ready("10.0.0.1")), slice("b", "8", "IPv6", ready("fd00::1")))
	w.want(t, "10.0.0.1:53", "[fd00::1]:53")
	r := a.next(t, true, "10")
	if r.query.Get("allowWatchBookmarks") != "true" || r.query.Get("timeoutSeconds") == "" {
		t.Errorf("watch: %v", r.query)
	}
	r.event(t, "ADDED", slice("c", "11", "IPv4", ready("10.0.0.3"), ready("10.0.0.2")))
	w.want(t, "10.0.0.1:53", "10.0.0.2:53", "10.0.0.3:53", "[fd00::1]:53")
	r.event(t, "MODIFIED", slice("c", "12", "IPv4", ready("10.0.0.3")))
	w.want(t, "10.0.0.1:53", "10.0.0.3:53", "[fd00::1]:53")
	r.event(t, "DELETED", slice("a", "13", "IPv4", ready("10.0.0.1")))
	w.want(t, "10.0.0.3:53", "[fd00::1]:53")
	r.event(t, "BOOKMARK", `{"metadata":{"resourceVersion":"20"}}`)
	r.end() // a regular end: continue from the bookmark
	r = a.next(t, true, "20")
	r.event(t, "MODIFIED", slice("c", "21", "IPv4", ready("10.0.0.3"))) // no change
	r.end()
	a.next(t, true, "21").end()
	w.wantNothing(t)
}

// An API server that disconnects, refuses, sends invalid data or has lost our
// version changes nothing. When it works again, all changes are applied.
func TestOutlivesFailures(t *testing.T) {
	a := newAPIServer(t)
	w := startWatch(t, a.account)
	refuse := func(r *request, status int) { r.w.WriteHeader(status); r.end() }
	refuse(a.next(t, false, "0"), http.StatusForbidden)
	w.wantError(t, "403")
	a.next(t, false, "0").list(t, "", slice("a", "1", "IPv4", ready("10.0.0.9")))
	w.wantError(t, "no resource version")
	a.next(t, false, "0").list(t, "10", slice("a", "9", "IPv4", ready("10.0.0.1")))
	w.want(t, "10.0.0.1:53")
	refuse(a.next(t, true, "10"), http.StatusServiceUnavailable)
	w.wantError(t, "503")
	r := a.next(t, true, "10")
	r.send(t, `{"type":"ADDED","object":{`) // cut off
	r.end()
	w.wantError(t, "EOF")
	r = a.next(t, true, "10")
	r.event(t, "ADDED", `"nonsense"`)
	r.end()
	w.wantError(t, "cannot unmarshal")
	r = a.next(t, true, "10") // wait for the request, so that it is the one that is cut
	a.CloseClientConnections()
	<-r.gone
	r.end()
	r = a.next(t, true, "10")
	r.event(t, "ERROR", `{"kind":"Status","code":500,"message":"etcd is unavailable"}`)
	r.end()
	w.wantError(t, "etcd is unavailable")
	r = a.next(t, true, "10")
	r.event(t, "ERROR", `{"kind":"Status","code":410,"reason":"Expired"}`)
	r.end()
	a.next(t, false, "").list(t, "30", slice("b", "29", "IPv4", ready("10.0.0.2")))
	w.want(t, "10.0.0.2:53")
	refuse(a.next(t, true, "30"), http.StatusGone)
	a.next(t, false, "").list(t, "40")
	w.want(t)
	a.next(t, true, "40").end()
	for _, s := range []string{"watching endpoints failed", "watching endpoints works again"} {
		if !strings.Contains(w.log.String(), s) {
			t.Errorf("log lacks %q:\n%s", s, w.log)
		}
	}
	w.wantNothing(t)
}

// Tokens and certificates may be replaced while Watch runs.
func TestReadsAccountAgain(t *testing.T) {
	a := newAPIServer(t)
	good, err := os.ReadFile(filepath.Join(a.account.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "token", "expired")
	w := startWatch(t, a.account)
	w.wantError(t, "401")
	a.write(t, "ca.crt", "no certificate")
	w.wantError(t, "contains no certificate")
	a.write(t, "ca.crt", string(good))
	a.write(t, "token", "secret")
	a.next(t, false, "0").list(t, "1", slice("a", "1", "IPv4", ready("10.0.0.1")))
	w.want(t, "10.0.0.1:53")
	r := a.next(t, true, "1")
	w.cancel()
	select {
	case <-r.gone:
		r.end()
	case <-time.After(hangTimeout):
		t.Error("the watch continues after ctx ended")
	}
}

func TestUnknownCertificateIsRefused(t *testing.T) {
	a := newAPIServer(t)
	a.write(t, "ca.crt", otherCertificate(t))
	w := startWatch(t, a.account)
	w.wantError(t, "certificate")
	w.wantNothing(t)
}

func otherCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestInCluster(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{}
	getenv := func(k string) string { return env[k] }
	for range 2 { // without an API server; without a token
		if _, err := InCluster(getenv, dir); !errors.Is(err, ErrNoAccount) {
			t.Errorf("%v: %v, want %v", env, err, ErrNoAccount)
		}
		env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"] = "fd00::1", "443"
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := InCluster(getenv, dir); err != nil || a.Server != "[fd00::1]:443" || a.Dir != dir {
		t.Errorf("%+v, %v", a, err)
	}
}
