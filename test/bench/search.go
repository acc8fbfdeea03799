package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// The workload of pods with ndots:5 that look up external names.
const (
	searchNames      = 300
	searchNamespaces = 10
	searchRate       = 150 // lookups per second
	searchTime       = 20 * time.Second
	searchCold       = 5 * time.Second // then the caches count as warm
	searchDelay      = 2 * time.Millisecond
	searchTimeout    = 5 * time.Second
)

// searchFigures are the results of one server.
type searchFigures struct {
	cold, warm, all float64       // queries for cluster.local at the upstream, per lookup
	first           float64       // the same, in the first second
	p50             time.Duration // of the first lookup of a name
	lookups, wrong  int
}

// clusterUpstream answers like the DNS of a cluster, after searchDelay, and counts the
// queries for cluster.local.
type clusterUpstream struct {
	upstream
	namespaces map[string]bool
}

func startClusterUpstream(ip netip.Addr) (*clusterUpstream, error) {
	u := &clusterUpstream{namespaces: make(map[string]bool)}
	for i := range searchNamespaces {
		u.namespaces[namespaceName(i)] = true
	}
	return u, u.serve(ip, u)
}

func namespaceName(i int) string { return fmt.Sprintf("ns%d.svc.cluster.local.", i) }

// ServeDNS implements dns.Handler.
func (u *clusterUpstream) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	question := q.Question[0]
	name, zone := strings.ToLower(question.Name), "example."
	switch {
	case strings.HasSuffix(name, "cluster.local."):
		u.asked.Add(1)
		zone = "cluster.local."
		service, of, _ := strings.Cut(name, ".")
		switch {
		case service == "web" && u.namespaces[of] && question.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: header(question.Name, dns.TypeA), A: net.IPv4(10, 96, 0, 1)}}
		case !u.namespaces[name] && name != zone && name != "svc."+zone && (service != "web" || !u.namespaces[of]):
			m.Rcode = dns.RcodeNameError
		}
	case question.Qtype == dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: header(question.Name, dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{&dns.SOA{Hdr: header(zone, dns.TypeSOA), Ns: "ns.dns." + zone, Mbox: "hostmaster." + zone,
			Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: 30}}
	}
	time.Sleep(searchDelay)
	_ = w.WriteMsg(m)
}

// searchCorefile is that of a node-local cache: denials of cluster names live 5 s.
func (e *env) searchCorefile(s *server) string {
	block := func(zone, cache string) string {
		return fmt.Sprintf("%s:%d {\n    bind %s\n    errors\n    %s\n    loop\n    forward . %s\n}\n", zone, s.addr.Port(), s.addr.Addr(), cache, e.upstream)
	}
	return block("cluster.local", "cache {\n        success 9984 30\n        denial 9984 5\n    }") + block(".", "cache 30")
}

// measureSearch runs the workload against nodens and CoreDNS, one after the other, each
// with an empty cache.
func (b *bench) measureSearch(ctx context.Context, e *env) (map[string]searchFigures, error) {
	found := make(map[string]searchFigures)
	for i, name := range []string{nodens, coreDNS} {
		if name == coreDNS && !slices.Contains(b.peers, coreDNS) {
			continue
		}
		f, err := b.searchWith(ctx, e, name, i)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("search path: %s: %w", name, err)
		}
		found[name] = f
		fmt.Fprintf(b.progress, "search path, %s: %.0f s\n", name, searchTime.Seconds())
	}
	return found, ctx.Err()
}

func (b *bench) searchWith(ctx context.Context, e *env, name string, i int) (f searchFigures, err error) {
	u, err := startClusterUpstream(address(20 + i))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, u.stop(context.WithoutCancel(ctx))) }()
	own := *e
	own.dir, own.upstream, own.search = filepath.Join(e.dir, "search-"+name), u.addr, true
	if err := os.Mkdir(own.dir, 0o755); err != nil {
		return f, err
	}
	if built := filepath.Join(e.dir, coreDNS); own.coreDNS == "" && exists(built) {
		own.coreDNS = built
	}
	s, err := own.start(ctx, name, address(30+i))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	w := &searchLoad{server: s.addr.String(), upstream: u, seen: make(map[int]bool)}
	return w.run(ctx)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// searchLoad looks names up, as a stub resolver with ndots:5 does.
type searchLoad struct {
	server   string
	upstream *clusterUpstream

	mu    sync.Mutex
	seen  map[int]bool // names that were looked up
	cold  []time.Duration
	wrong int
}

// run starts lookups at a fixed rate, whether earlier ones have ended or not.
func (w *searchLoad) run(ctx context.Context) (f searchFigures, err error) {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, searchNames-1)
	var pending sync.WaitGroup
	began, total := time.Now(), int(searchTime.Seconds()*searchRate)
	asked := func(from, lookups int) float64 {
		return float64(w.upstream.asked.Load()-int64(from)) / float64(lookups)
	}
	atCold := 0
	for i := range total {
		select {
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(time.Until(began.Add(time.Duration(i) * time.Second / searchRate))):
		}
		switch i {
		case searchRate:
			f.first = asked(0, i)
		case int(searchCold.Seconds() * searchRate):
			atCold = int(w.upstream.asked.Load())
			f.cold = asked(0, i)
		}
		name, namespace := int(zipf.Uint64()), random.IntN(searchNamespaces)
		pending.Go(func() { w.lookup(name, namespace) })
	}
	pending.Wait()
	f.all, f.warm = asked(0, total), asked(atCold, total-int(searchCold.Seconds()*searchRate))
	for i := range searchNamespaces {
		if w.ask("web."+namespaceName(i), dns.TypeA) != dns.RcodeSuccess {
			w.wrong++
		}
	}
	slices.Sort(w.cold)
	f.lookups, f.wrong, f.p50 = total, w.wrong, w.cold[len(w.cold)/2]
	return f, nil
}

// lookup walks the search path of a pod for an external name.
func (w *searchLoad) lookup(i, namespace int) {
	name := fmt.Sprintf("host%d.example.%s.", i, [...]string{"com", "org", "net", "io"}[i%4])
	w.mu.Lock()
	first := !w.seen[i]
	w.seen[i] = true
	w.mu.Unlock()
	began := time.Now()
	for _, domain := range []string{namespaceName(namespace), "svc.cluster.local.", "cluster.local."} {
		w.expect(name+domain, dns.RcodeNameError)
	}
	w.expect(name, dns.RcodeSuccess)
	if first {
		w.mu.Lock()
		w.cold = append(w.cold, time.Since(began))
		w.mu.Unlock()
	}
}

// expect asks for A and AAAA at once and waits for both.
func (w *searchLoad) expect(name string, rcode int) {
	var both sync.WaitGroup
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		both.Go(func() {
			if w.ask(name, qtype) != rcode {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.wrong++
			}
		})
	}
	both.Wait()
}

// ask returns the rcode of the answer. An answer without an address where there is one,
// and no answer, are -1.
func (w *searchLoad) ask(name string, qtype uint16) int {
	c := dns.Client{Timeout: searchTimeout}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, qtype), w.server)
	if err != nil || r.Rcode == dns.RcodeSuccess && (len(r.Answer) == 1) != (qtype == dns.TypeA) {
		return -1
	}
	return r.Rcode
}

func (b *bench) reportSearch(w io.Writer, found map[string]searchFigures) {
	var rows [][]string
	for _, name := range []string{nodens, coreDNS} {
		if f, ok := found[name]; ok {
			rows = append(rows, []string{name, number(f.first, 2), number(f.cold, 3), number(f.warm, 3), number(f.all, 3),
				number(f.p50.Seconds()*1000, 1), fmt.Sprint(f.lookups), fmt.Sprint(f.wrong)})
		}
	}
	fmt.Fprintf(w, "Search paths: %d lookups/s of %d external names in Zipf order, with 4 TLDs, by pods of %d namespaces, A and AAAA, ndots:5, from an empty cache. Denials live 5 s, and the upstream takes %v. Queries for cluster.local at the upstream per lookup.\n\n",
		searchRate, searchNames, searchNamespaces, searchDelay)
	table(w, []string{"server", "first second", fmt.Sprintf("first %v", searchCold), "after", fmt.Sprintf("all %v", searchTime), "first lookup of a name, p50 ms", "lookups", "wrong answers"}, rows)
}
