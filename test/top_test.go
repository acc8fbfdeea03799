package test

import (
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/internal/state"
)

// TestTop runs nodens top beside a daemon. The output has the name that a pod queries and
// the pod's address, as JSON and as text.
func TestTop(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	binary := buildPlain.Path(t)
	lab.StartDaemon(t, lab.DaemonOptions{Binary: binary, Netns: c.node, Corefile: ". {\n bind " + localIP + "\n cache\n forward . 10.1.1.2\n" + admin + "}"})
	for range 20 {
		c.pod.Ask(t, "udp", localAddr, lab.Query("www.example.", dns.TypeA))
	}
	top := func(args ...string) string {
		out, errs, status := lab.Command{Netns: c.node, Args: append([]string{binary, "top"}, args...)}.Output(t)
		if status != 0 {
			t.Fatalf("top %q: status %d: %s", args, status, errs)
		}
		return out
	}
	var s *state.State
	for deadline := time.Now().Add(time.Minute); ; {
		var err error
		if s, err = state.Read(strings.NewReader(top("-o", "json"))); err != nil {
			t.Fatal(err)
		}
		if names := s.Top["1m"].Names; len(names) > 0 && names[0].Count >= 20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s)
		}
	}
	if e := s.Top["1m"].Names[0]; e.Key != "www.example." || e.Zone != "." || s.Hits < 19 {
		t.Errorf("%+v, %d hits", e, s.Hits)
	}
	if len(s.Zones) == 0 || s.Zones[0].HitLatency.P99 <= 0 || s.Zones[0].MissLatency.P99 <= 0 || s.Upstreams[0].Latency.P99 <= 0 {
		t.Errorf("latencies by zone and upstream: %+v, %+v", s.Zones, s.Upstreams)
	}
	_, body := c.node.Get(t, metrics, "/metrics")
	for _, secret := range []string{"www.example.", s.Top["1m"].Clients[0].Key} {
		if strings.Contains(body, secret) {
			t.Errorf("%s is in the metrics", secret)
		}
	}
	text := top()
	for _, want := range []string{"www.example.", s.Top["1m"].Clients[0].Key, "10.1.1.2:53", "QUERIES/S"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, text)
		}
	}
	if _, errs, status := (lab.Command{Netns: c.pod, Args: []string{binary, "top"}}).Output(t); status != 1 || !strings.Contains(errs, "no nodens runs in this network") {
		t.Errorf("without a daemon: status %d: %s", status, errs)
	}
}
