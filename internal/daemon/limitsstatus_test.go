package daemon

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
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
