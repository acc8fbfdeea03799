package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
)

// metricsAddr returns the host and port of the first prometheus directive, or "".
func metricsAddr(cfg *config.Config) string {
	for _, b := range cfg.Blocks {
		if b.Prometheus == nil {
			continue
		}
		host, port, err := net.SplitHostPort(b.Prometheus.Addr)
		if err == nil && host == "" {
			return net.JoinHostPort("localhost", port)
		}
		return b.Prometheus.Addr
	}
	return ""
}

// printLimits prints the limits that the running daemon with this Corefile exports.
func printLimits(ctx context.Context, w io.Writer, cfg *config.Config) {
	l, err := scrapeLimits(ctx, metricsAddr(cfg))
	if err != nil {
		fmt.Fprintf(w, "limits\tunknown: %v\n", err)
		return
	}
	memory := "no memory limit"
	if n := l["nodens_limit_bytes memory"]; n > 0 {
		memory = fmt.Sprintf("memory %d MiB, heap %d MiB", n>>20, l["nodens_limit_bytes heap"]>>20)
	}
	fmt.Fprintf(w, "limits\t%s, cache %d MiB\n", memory, l["nodens_limit_bytes cache"]>>20)
	fmt.Fprintf(w, "limits\t%d misses, %d of one client\n", l["nodens_limit misses"], l["nodens_limit misses_per_client"])
	fmt.Fprintf(w, "limits\t%d TCP connections on each address, %d of one client\n", l["nodens_limit tcp_connections"], l["nodens_limit tcp_connections_per_client"])
	fmt.Fprintf(w, "limits\t%d UDP sockets and %d TCP connections to upstreams\n", l["nodens_limit upstream_sockets"], l["nodens_limit upstream_tcp_connections"])
	for _, key := range slices.Sorted(maps.Keys(l)) {
		if flag, ok := strings.CutPrefix(key, "nodens_limit_clamped "); ok && l[key] == 1 {
			fmt.Fprintf(w, "note\t-%s does not fit and is lowered; run nodens check with the daemon's flags\n", strings.ReplaceAll(flag, "_", "-"))
		}
	}
}

// scrapeLimits returns the metrics of the limits by "NAME LABEL".
func scrapeLimits(ctx context.Context, addr string) (map[string]int64, error) {
	return scrape(ctx, addr, "nodens_limit")
}

// scrape returns the metrics whose names begin with prefix by "NAME LABEL". It fails if
// there are none.
func scrape(ctx context.Context, addr, prefix string) (map[string]int64, error) {
	if addr == "" {
		return nil, errors.New("the Corefile has no prometheus directive")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without the proxy of the environment
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	found := make(map[string]int64)
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "{")
		_, rest, _ = strings.Cut(rest, `"`)
		label, value, _ := strings.Cut(rest, `"} `)
		if n, err := strconv.ParseFloat(value, 64); err == nil && strings.HasPrefix(name, prefix) {
			found[name+" "+label] = int64(n)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no metrics %s… at %s", prefix, r.URL)
	}
	return found, lines.Err()
}
