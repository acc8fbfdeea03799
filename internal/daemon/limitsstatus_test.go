package daemon

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/fastpath"
)

// status prints the limits of the running daemon.
func TestPrintLimits(t *testing.T) {
	const metrics = `# HELP nodens_limit x
nodens_limit{resource="misses"} 4778
nodens_limit{resource="misses_per_client"} 597
nodens_limit{resource="tcp_connections"} 56
nodens_limit{resource="tcp_connections_per_client"} 28
nodens_limit{resource="upstream_sockets"} 1194
nodens_limit{resource="upstream_tcp_connections"} 74
nodens_limit_bytes{resource="memory"} 1.34217728e+08
nodens_limit_bytes{resource="heap"} 4.1238528e+07
nodens_limit_bytes{resource="cache"} 6.7108864e+07
nodens_limit_clamped{limit="cache_size"} 0
nodens_limit_clamped{limit="max_misses"} 1
nodens_limit_clamped{limit="max_tcp_connections"} 1
`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, metrics) }))
	defer s.Close()
	var out bytes.Buffer
	printLimits(t.Context(), &out, &config.Config{Blocks: []*config.Block{{Prometheus: &config.Prometheus{Addr: strings.TrimPrefix(s.URL, "http://")}}}})
	want := `limits	memory 128 MiB, heap 39 MiB, cache 64 MiB
limits	4778 misses, 597 of one client
limits	56 TCP connections on each address, 28 of one client
limits	1194 UDP sockets and 74 TCP connections to upstreams
note	-max-misses does not fit and is lowered; run nodens check with the daemon's flags
note	-max-tcp-connections does not fit and is lowered; run nodens check with the daemon's flags
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	printLimits(t.Context(), &out, new(config.Config))
	if want := "limits\tunknown: the Corefile has no prometheus directive\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestExportedFastpath: nodens exports pass reasons once it has loaded the program, and leases of
// the interfaces that have it.
func TestExportedFastpath(t *testing.T) {
	const limit, passed = `nodens_limit{resource="misses"} 4778` + "\n", `nodens_kernel_passed_total{reason="no_lease"} 0` + "\n"
	for _, c := range []struct {
		metrics string
		want    fastpath.State
	}{
		{limit, fastpath.State{}},
		{limit + passed, fastpath.State{Loaded: true}},
		{limit + passed + `nodens_kernel_leases{interface="cali1"} 2` + "\n", fastpath.State{Loaded: true, Leases: map[string]uint64{"cali1": 2}}},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, c.metrics) }))
		got, err := exportedFastpath(t.Context(), strings.TrimPrefix(s.URL, "http://"))
		s.Close()
		if err != nil || got.Loaded != c.want.Loaded || !maps.Equal(got.Leases, c.want.Leases) {
			t.Errorf("%s: %+v, %v, want %+v", c.metrics, got, err, c.want)
		}
		if _, err := exportedFastpath(t.Context(), strings.TrimPrefix(s.URL, "http://")); err == nil {
			t.Error("no error without a daemon")
		}
	}
}

// TestFastpathState: status and doctor read the fast path's state at -status-address or, if
// that fails, from the metrics.
func TestFastpathState(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := `data: {"fastpath": {"state": "on", "interfaces": {"cali1": 2}}}` + "\n\n"
		if r.URL.Path == "/metrics" {
			text = `nodens_kernel_passed_total{reason="no_lease"} 0` + "\n" + `nodens_kernel_leases{interface="cali1"} 2` + "\n"
		}
		_, _ = io.WriteString(w, text)
	}))
	defer web.Close()
	addr := strings.TrimPrefix(web.URL, "http://")
	metrics := &config.Config{Blocks: []*config.Block{{Prometheus: &config.Prometheus{Addr: addr}}}}
	for _, c := range []struct {
		status string
		cfg    *config.Config
		ok     bool
	}{{addr, new(config.Config), true}, {"", metrics, true}, {"", new(config.Config), false}} {
		o := &Options{Status: StatusOptions{Address: c.status}}
		got, err := o.fastpathState(t.Context(), c.cfg)
		if (err == nil) != c.ok || c.ok && (!got.Loaded || got.Leases["cali1"] != 2) {
			t.Errorf("status address %q, %d blocks: %+v, %v", c.status, len(c.cfg.Blocks), got, err)
		}
	}
}
