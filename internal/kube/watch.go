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

// Config selects the endpoints to watch.
type Config struct {
	Account            Account
	Namespace, Service string
	Zone               string // of this node, by label topology.kubernetes.io/zone; empty: unknown

	Logger  *slog.Logger // nil: discard
	OnError func(error)  // called for every failure, from Watch's goroutine; may be nil

	// Back-off after failures. It doubles from MinDelay to MaxDelay; each delay is
	// shortened at random by up to a half. 0: 1 s and 1 min.
	MinDelay, MaxDelay time.Duration
}

const (
	defaultMinDelay = time.Second
	defaultMaxDelay = time.Minute
	// The API server ends a watch after minWatch to twice that, at random, so that
	// nodes that started together do not reconnect together.
	minWatch = 5 * time.Minute
	// maxSize is the size of a list or an event in bytes.
	maxSize = 32 << 20
)

// errGone is the API server's status 410: it no longer has the version that we watch
// from.
var errGone = errors.New("resource version is gone")

// watcher is the state of one Watch.
type watcher struct {
	Config
	client  *http.Client
	slices  map[string]endpointSlice // by name
	version string                   // to watch from; empty: list first
	noCache bool                     // the next list must not come from the server's cache
	sent    []netip.AddrPort         // last argument of the callback
	first   bool                     // no callback yet
	failed  bool                     // a failure since the last success was logged
}

// Watch calls f with the servers to use, in Watch's goroutine: when they are first
// known and whenever they change. It does not call f while requests to the API
// server fail. It returns when ctx ends.
//
// The list is empty if no endpoint of the Service answers.
func Watch(ctx context.Context, c Config, f func([]netip.AddrPort)) {
	w := &watcher{Config: c, first: true}
	if w.Logger == nil {
		w.Logger = slog.New(slog.DiscardHandler)
	}
	if w.MinDelay <= 0 {
		w.MinDelay = defaultMinDelay
	}
	if w.MaxDelay < w.MinDelay {
		w.MaxDelay = max(defaultMaxDelay, w.MinDelay)
	}
	backoff := w.MinDelay
	for ctx.Err() == nil {
		progress, err := w.listAndWatch(ctx, f)
		if ctx.Err() != nil {
			break
		}
		if progress {
			backoff = w.MinDelay
		}
		w.report(err)
		delay := w.MinDelay // even if the server ends each watch immediately
		if err != nil && !errors.Is(err, errGone) {
			delay = backoff
			backoff = min(2*backoff, w.MaxDelay)
		}
		sleep(ctx, delay/2+rand.N(delay/2+1))
	}
	w.reset()
}

// report logs the first of several failures.
func (w *watcher) report(err error) {
	if err == nil || errors.Is(err, errGone) {
		return
	}
	if !w.failed {
		w.Logger.Warn("watching endpoints failed, the last known ones stay", "service", w.Namespace+"/"+w.Service, "error", err)
	}
	w.failed = true
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

// listAndWatch lists, unless the version is known, and watches until the API
// server ends the watch. progress reports whether it applied anything.
func (w *watcher) listAndWatch(ctx context.Context, f func([]netip.AddrPort)) (progress bool, err error) {
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
		w.notify(f)
	}
	events, err := w.watch(ctx, f)
	if errors.Is(err, errGone) {
		w.version, w.noCache = "", true
	}
	return progress || events, err
}

// notify calls f if the servers have changed.
func (w *watcher) notify(f func([]netip.AddrPort)) {
	if w.failed {
		w.failed = false
		w.Logger.Info("watching endpoints works again", "service", w.Namespace+"/"+w.Service)
	}
	now := choose(w.slices, w.Zone)
	if !w.first && slices.Equal(now, w.sent) {
		return
	}
	w.first, w.sent = false, now
	f(slices.Clone(now))
}

// list replaces all slices.
func (w *watcher) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	q := url.Values{}
	if !w.noCache {
		q.Set("resourceVersion", "0") // any version in the server's cache
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
	if err := json.NewDecoder(io.LimitReader(body, maxSize)).Decode(&l); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	if l.Metadata.ResourceVersion == "" {
		return errors.New("list endpoint slices: the response has no resource version")
	}
	w.slices = make(map[string]endpointSlice, len(l.Items))
	for _, s := range l.Items {
		w.slices[s.Metadata.Name] = s
	}
	w.version, w.noCache = l.Metadata.ResourceVersion, false
	return nil
}

// watch applies the changes since version. It returns nil when the server ends the
// watch after the requested time.
func (w *watcher) watch(ctx context.Context, f func([]netip.AddrPort)) (progress bool, err error) {
	timeout := minWatch + rand.N(minWatch)
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Minute)
	defer cancel()
	body, err := w.get(ctx, url.Values{
		"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {w.version},
		"timeoutSeconds": {strconv.Itoa(int(timeout.Seconds()))},
	})
	if err != nil {
		return false, fmt.Errorf("watch endpoint slices: %w", err)
	}
	defer body.Close()
	bounded := &io.LimitedReader{R: body}
	events := json.NewDecoder(bounded)
	for {
		bounded.N = maxSize
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
		w.notify(f)
	}
}

// event is a watch event.
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
		return fmt.Errorf("unknown event type %q", e.Type)
	}
	if s.Metadata.ResourceVersion != "" {
		w.version = s.Metadata.ResourceVersion
	}
	return nil
}

// statusError decodes a Status object.
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

// get requests the Service's slices.
func (w *watcher) get(ctx context.Context, q url.Values) (io.ReadCloser, error) {
	q.Set("labelSelector", "kubernetes.io/service-name="+w.Service)
	u := url.URL{Scheme: "https", Host: w.Account.Server, RawQuery: q.Encode(),
		Path: "/apis/discovery.k8s.io/v1/namespaces/" + w.Namespace + "/endpointslices"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	token, err := w.Account.token() // read again each time: it is replaced every hour
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
