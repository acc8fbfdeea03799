// Command path prints the functions and files that one cache hit and one plain
// miss run through, and fails if they are more than the limits. Build it with
// "make path".
//
// It serves a zone with a cache and one UDP upstream over loopback, warms up,
// clears the coverage counters, sends one query, and reads the counters. Of some
// queries, the one with the fewest functions counts: the others met a timer of an
// earlier query, an empty pool of memory, or a table that had to grow.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/cache"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
)

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	addr, stop, err := serve()
	if err != nil {
		return err
	}
	defer stop()
	for i := range 20 {
		if err := ask(addr, fmt.Sprintf("warm%d.example.org.", i/2)); err != nil {
			return err
		}
	}
	return errors.Join(
		check("hit", 63, 16, func(int) error { return ask(addr, "warm0.example.org.") }),
		check("miss", 120, 20, func(i int) error { return ask(addr, fmt.Sprintf("new%d.example.org.", i)) }),
	)
}

// check prints the functions of a query by file. It returns an error if there are
// more functions or files than allowed.
func check(kind string, maxFunctions, maxFiles int, query func(i int) error) error {
	var fewest map[string][]string
	n := 0
	for i := range 5 {
		functions, err := trace(func() error { return query(i) })
		if err != nil {
			return err
		}
		sum := 0
		for _, names := range functions {
			sum += len(names)
		}
		if fewest == nil || sum < n {
			fewest, n = functions, sum
		}
	}
	fmt.Printf("%s: %d functions in %d files\n", kind, n, len(fewest))
	for _, f := range slices.Sorted(maps.Keys(fewest)) {
		fmt.Printf("  %-32s %s\n", f, strings.Join(fewest[f], " "))
	}
	if n > maxFunctions || len(fewest) > maxFiles {
		return fmt.Errorf("a %s may run through %d functions in %d files", kind, maxFunctions, maxFiles)
	}
	return nil
}

// trace returns the functions that ran during query, by file.
func trace(query func() error) (map[string][]string, error) {
	dir, err := os.MkdirTemp("", "nodens-path")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	time.Sleep(100 * time.Millisecond) // the goroutines of the previous query end
	if err := coverage.ClearCounters(); err != nil {
		return nil, err
	}
	if err := query(); err != nil {
		return nil, err
	}
	time.Sleep(100 * time.Millisecond) // the work after the reply ends
	if err := coverage.WriteMetaDir(dir); err != nil {
		return nil, err
	}
	if err := coverage.WriteCountersDir(dir); err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "tool", "covdata", "func", "-i="+dir).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool covdata: %w", err)
	}
	return parse(string(out)), nil
}

// parse reads the lines "file:line: function percent" of covdata.
func parse(out string) map[string][]string {
	functions := make(map[string][]string)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] == "total" || f[2] == "0.0%" {
			continue
		}
		file, _, _ := strings.Cut(f[0], ":")
		if i := strings.Index(file, "/nodens/"); i >= 0 {
			file = file[i+len("/nodens/"):]
		}
		file = filepath.ToSlash(strings.TrimPrefix(file, "internal/"))
		if !strings.HasPrefix(file, "test/") {
			functions[file] = append(functions[file], f[1])
		}
	}
	return functions
}

// ask sends one query over UDP.
func ask(addr netip.AddrPort, name string) error {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	r, _, err := new(dns.Client).Exchange(m, addr.String())
	if err == nil && (r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1) {
		err = fmt.Errorf("unexpected reply: %v", r)
	}
	return err
}

// serve starts the upstream, the pool and the server.
func serve() (netip.AddrPort, func(), error) {
	up, err := serveUpstream()
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	reg := prometheus.NewRegistry()
	pool, err := upstream.NewPool(upstream.PoolConfig{
		From: ".", Endpoints: []upstream.Endpoint{{Addr: up}}, MaxFails: 2, Metrics: upstream.NewMetrics(reg),
	})
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = pool.Run(ctx) }()
	metrics, err := server.NewMetrics(reg, 1)
	if err != nil {
		cancel()
		return netip.AddrPort{}, nil, err
	}
	s := server.New(server.Config{Logger: slog.Default(), Metrics: metrics, Now: time.Now, Workers: 1})
	stop := func() { _ = s.Shutdown(ctx); cancel() }
	c := cache.New(cache.Options{Shards: 1}).Cache("", cache.Policy{ServFail: 5 * time.Second})
	zone := &server.Zone{
		Name: ".", Cache: c, Sources: []server.NamedSource{{Name: "forward", Source: pool}},
		Errors: server.NewErrorLog(slog.Default(), nil),
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 53}), up.Port())
	err = s.Apply(ctx, []server.Binding{{Addr: addr, Zones: []*server.Zone{zone}}})
	return addr, stop, err
}

// serveUpstream answers every query over UDP with one address.
func serveUpstream() (netip.AddrPort, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return netip.AddrPort{}, err
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		r := new(dns.Msg).SetReply(m)
		r.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
			A:   net.IPv4(192, 0, 2, 1),
		}}
		if m.IsEdns0() != nil {
			r.SetEdns0(1232, false)
		}
		_ = w.WriteMsg(r)
	})
	go func() { _ = dns.ActivateAndServe(nil, conn, handler) }()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), nil
}
