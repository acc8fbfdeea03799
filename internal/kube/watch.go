package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// Config says whose endpoints to watch.
type Config struct {
	Account            Account
	Namespace, Service string
	Zone               string // of this node, as topology.kubernetes.io/zone has it; empty: unknown

	Logger  *slog.Logger // nil: discarded
	OnError func(error)  // is told of every failure, from Watch's goroutine; may be nil

	// Back-off after failures, doubled from the one to the other and shortened
	// at random by up to a half; 0: 1 s and 1 min.
	MinPause, MaxPause time.Duration
}

const (
	defaultMinPause = time.Second
	defaultMaxPause = time.Minute
	// watchTime is when the API server ends a watch, more or less: nodes that
	// start together do not come back together.
	watchTime = 5 * time.Minute
	// maxList bounds a list, and an event, in octets.
	maxList = 32 << 20
)

// errGone is the API server's 410: it no longer knows the version that we watch
// from.
var errGone = errors.New("resource version is gone")

// watcher is the state of one Watch.
type watcher struct {
	Config
	client  *http.Client
	slices  map[string]endpointSlice // by name
	version string                   // to watch from; empty: list first
	fresh   bool                     // the next list must not come from the server's cache
	told    []netip.AddrPort
	first   bool // nothing was told yet
	broken  bool // since the last success, and logged
}

// Watch calls f with the servers to ask: once they are first known, and whenever
// they change, in Watch's goroutine. While the API server cannot be reached, or
// refuses, nothing changes. It returns when ctx ends.
//
// A Service without endpoints that answer gives an empty list.
func Watch(ctx context.Context, c Config, f func([]netip.AddrPort)) {
	w := &watcher{Config: c, first: true}
	if w.Logger == nil {
		w.Logger = slog.New(slog.DiscardHandler)
	}
	if w.MinPause <= 0 {
		w.MinPause = defaultMinPause
	}
	if w.MaxPause < w.MinPause {
		w.MaxPause = max(defaultMaxPause, w.MinPause)
	}
	pause := w.MinPause
	for ctx.Err() == nil {
		progress, err := w.once(ctx, f)
		if ctx.Err() != nil {
			break
		}
		if progress {
			pause = w.MinPause
		}
		w.report(err)
		wait := w.MinPause // a server that ends watches at once is not asked in a tight loop
		if err != nil && !errors.Is(err, errGone) {
			wait = pause
			pause = min(2*pause, w.MaxPause)
		}
		sleep(ctx, wait/2+rand.N(wait/2+1))
	}
	w.reset()
}

// report logs the first failure in a row and the recovery.
func (w *watcher) report(err error) {
	if err == nil || errors.Is(err, errGone) {
		return
	}
	if !w.broken {
		w.Logger.Warn("endpoints are not followed; the last known stay", "service", w.Namespace+"/"+w.Service, "error", err)
	}
	w.broken = true
	if w.OnError != nil {
		w.OnError(err)
	}
	w.reset() // the certificate may have changed
}

func (w *watcher) reset() {
	if w.client != nil {
		w.client.CloseIdleConnections()
		w.client = nil
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// once lists if need be, and watches until the API server ends that. progress:
// something was understood.
func (w *watcher) once(ctx context.Context, f func([]netip.AddrPort)) (progress bool, err error) {
	if w.client == nil {
		if w.client, err = w.Account.client(); err != nil {
			return false, err
		}
	}
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return false, err
		}
		progress = true
		w.tell(f)
	}
	events, err := w.watch(ctx, f)
	if errors.Is(err, errGone) {
		w.version, w.fresh = "", true
	}
	return progress || events, err
}

func (w *watcher) tell(f func([]netip.AddrPort)) {
	if w.broken {
		w.broken = false
		w.Logger.Info("endpoints are followed again", "service", w.Namespace+"/"+w.Service)
	}
	now := choose(w.slices, w.Zone)
	if !w.first && slices.Equal(now, w.told) {
		return
	}
	w.first, w.told = false, now
	f(slices.Clone(now))
}

// list replaces what is known.
func (w *watcher) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q := url.Values{}
	if !w.fresh {
		q.Set("resourceVersion", "0") // whatever the server has at hand
	}
	body, err := w.get(ctx, q)
	if err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	defer body.Close()
	var l struct {
		Metadata meta            `json:"metadata"`
		Items    []endpointSlice `json:"items"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxList)).Decode(&l); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	if l.Metadata.ResourceVersion == "" {
		return errors.New("list endpoint slices: the answer has no resource version")
	}
	w.slices = make(map[string]endpointSlice, len(l.Items))
	for _, s := range l.Items {
		w.slices[s.Metadata.Name] = s
	}
	w.version, w.fresh = l.Metadata.ResourceVersion, false
	return nil
}

// watch follows the changes since version. It returns nil when the server ends
// the watch as agreed.
func (w *watcher) watch(ctx context.Context, f func([]netip.AddrPort)) (progress bool, err error) {
	most := watchTime + rand.N(watchTime)
	ctx, cancel := context.WithTimeout(ctx, most+time.Minute)
	defer cancel()
	body, err := w.get(ctx, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {w.version},
		"timeoutSeconds": {strconv.Itoa(int(most.Seconds()))},
	})
	if err != nil {
		return false, fmt.Errorf("watch endpoint slices: %w", err)
	}
	defer body.Close()
	bounded := &io.LimitedReader{R: body}
	events := json.NewDecoder(bounded)
	for {
		bounded.N = maxList
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			return progress, nil
		} else if err != nil {
			return progress, fmt.Errorf("watch endpoint slices: %w", err)
		}
		if err := w.apply(e); err != nil {
			return progress, fmt.Errorf("watch endpoint slices: %w", err)
		}
		progress = true
		w.tell(f)
	}
}

// event is one of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (w *watcher) apply(e event) error {
	if e.Type == "ERROR" {
		return statusError(e.Object)
	}
	var s endpointSlice
	if err := json.Unmarshal(e.Object, &s); err != nil {
		return err
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		w.slices[s.Metadata.Name] = s
	case "DELETED":
		delete(w.slices, s.Metadata.Name)
	case "BOOKMARK":
	default:
		return fmt.Errorf("event of unknown type %q", e.Type)
	}
	if s.Metadata.ResourceVersion != "" {
		w.version = s.Metadata.ResourceVersion
	}
	return nil
}

// statusError reads a Status object.
func statusError(b []byte) error {
	var s struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if s.Code == http.StatusGone {
		return errGone
	}
	return fmt.Errorf("API server: %d %s", s.Code, s.Message)
}

// get asks for the Service's slices.
func (w *watcher) get(ctx context.Context, q url.Values) (io.ReadCloser, error) {
	q.Set("labelSelector", "kubernetes.io/service-name="+w.Service)
	u := url.URL{Scheme: "https", Host: w.Account.Server, RawQuery: q.Encode(),
		Path: "/apis/discovery.k8s.io/v1/namespaces/" + w.Namespace + "/endpointslices"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	token, err := w.Account.token() // again each time: it is replaced every hour
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "nodens")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusGone {
		return nil, errGone
	}
	return nil, fmt.Errorf("API server: %s", resp.Status)
}
