package daemon

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/state"
	"github.com/nodens-dns/nodens/internal/statuspage"
	"github.com/nodens-dns/nodens/internal/watch"
)

const (
	maxFollowers = 16              // clients of the event stream
	maxToken     = 4 << 10         // bytes
	statusWrite  = 5 * time.Second // for a client to accept an answer
)

// statusServer serves the daemon's state over HTTP. It changes nothing.
type statusServer struct {
	base
	reporter  *reporter
	followers chan struct{} // one for each client of the event stream
	findings  http.Handler
}

func newStatusServer(b base, r *reporter) *statusServer {
	return &statusServer{
		base: b, reporter: r, followers: make(chan struct{}, maxFollowers),
		findings: statuspage.Findings(func(ctx context.Context) *doctor.Report { return examineNode(ctx, b.opts) }, time.Now),
	}
}

// examineNode examines the node but no pods, since this process may not enter their
// network namespaces.
func examineNode(ctx context.Context, o *Options) *doctor.Report {
	r := doctor.Examine(ctx, o.DoctorConfig(func(error) {})) // a reload logs the warnings
	r.Unexamined = append(r.Unexamined, "pods: run nodens doctor on the node")
	return r
}

// CheckStatus returns an error if -status-address is invalid, or if pods could read the
// queries of other pods there.
func (o *Options) CheckStatus() error {
	a := o.Status.Address
	if a == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(a)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if _, ierr := netip.ParseAddr(host); ierr != nil && host != "" && host != "localhost" {
		err = errors.New("not an IP address")
	}
	switch {
	case err != nil:
		return fmt.Errorf("-status-address %s: want IP:port, or an empty value for none", a)
	case !isLoopback(host) && o.Status.TokenFile == "":
		return fmt.Errorf("-status-address %s: pods can reach this address and read the queries of other pods; use 127.0.0.1, or set -status-token-file", a)
	}
	return nil
}

// isLoopback reports whether host is localhost or a loopback address.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// endpoints serves -status-address. DNS does not depend on it.
func (s *statusServer) endpoints() []endpoint {
	if s.opts.Status.Address == "" {
		return nil
	}
	at := func(path string, h http.Handler) endpoint {
		return endpoint{addr: s.opts.Status.Address, path: path, handler: s.guard(h), optional: true}
	}
	return []endpoint{
		at(state.Path, s.withToken(http.HandlerFunc(s.serveState))),
		at(state.EventsPath, s.withToken(http.HandlerFunc(s.serveEvents))),
		at(statuspage.FindingsPath, s.withToken(s.findings)),
		at("/{$}", http.HandlerFunc(statuspage.Page)),
	}
}

// guard refuses requests that change something and, on a loopback address, those for
// another host, which a browser sends after DNS rebinding. It checks no token, so h must
// not show any of the daemon's state.
func (s *statusServer) guard(h http.Handler) http.Handler {
	host, _, _ := net.SplitHostPort(s.opts.Status.Address)
	local := isLoopback(host)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'") // the page sets its own
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cache-Control", "no-store")
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(statusWrite))
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "the state is read-only", http.StatusMethodNotAllowed)
		case local && !isLoopback(hostOf(r.Host)):
			http.Error(w, "use the address "+s.opts.Status.Address+" or localhost", http.StatusMisdirectedRequest)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// hostOf returns the host of a Host header, without the port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.Trim(header, "[]")
}

// withToken refuses requests without the token of -status-token-file, if that is set. It
// reads the file for each request, because the kubelet updates a mounted Secret.
func (s *statusServer) withToken(h http.Handler) http.Handler {
	if s.opts.Status.TokenFile == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := watch.ReadFile(s.opts.Path(s.opts.Status.TokenFile), maxToken)
		want := strings.TrimSpace(string(text))
		switch {
		case err != nil || want == "":
			s.log.Debug("the token of the status address cannot be read", "file", s.opts.Status.TokenFile, "error", err)
			http.Error(w, "nodens cannot read the file of -status-token-file, or it is empty", http.StatusInternalServerError)
		case !equalSecrets(r.Header.Get(state.TokenHeader), want):
			http.Error(w, "the header "+state.TokenHeader+" does not have the token", http.StatusUnauthorized)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// equalSecrets compares in a time that does not depend on the content.
func equalSecrets(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// serveState writes the state once. ?zone=NAME selects the lists of a zone.
func (s *statusServer) serveState(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.reporter.state(r.URL.Query().Get("zone")))
}

// serveEvents writes the state each second as a server-sent event, until the client
// disconnects or does not read for statusWrite.
func (s *statusServer) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case s.followers <- struct{}{}:
		defer func() { <-s.followers }()
	default:
		http.Error(w, fmt.Sprintf("%d clients already follow the state", maxFollowers), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for s.writeEvent(r.Context(), w, r.URL.Query().Get("zone")) == nil {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

func (s *statusServer) writeEvent(ctx context.Context, w http.ResponseWriter, zone string) error {
	text, err := json.Marshal(s.reporter.state(zone))
	if err != nil {
		return err
	}
	out := http.NewResponseController(w)
	if err := out.SetWriteDeadline(time.Now().Add(statusWrite)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
		return err
	}
	return errors.Join(out.Flush(), ctx.Err())
}
