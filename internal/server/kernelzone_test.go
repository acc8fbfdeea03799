package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// names is a Fastpath that holds nothing. It records the names whose answers it gets.
type names struct {
	idleFastpath
	mu  sync.Mutex
	got map[string]bool
}

func (*names) Heard(netip.AddrPort, uint16, int) bool { return true }

func (n *names) Put(a KernelAnswer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, _, err := dns.UnpackDomainName(a.Question, 0)
	n.got[name] = err == nil
	return false
}

func (n *names) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.got[name]
}

// TestZonesOfTheKernel: the kernel gets no answers of a zone with a directive that must see
// each query, or that makes replies depend on more than the question.
func TestZonesOfTheKernel(t *testing.T) {
	acl, err := action.NewACL(nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]func(z *Zone){
		"log":     func(z *Zone) { z.Log = NewQueryLog(slog.New(slog.DiscardHandler), new(lines), nil) },
		"dnstap":  func(z *Zone) { z.Tap = func(upstream.TapMessage) {} },
		"acl":     func(z *Zone) { z.Actions = &Actions{ACL: acl} },
		"rewrite": func(z *Zone) { z.Actions = &Actions{Rewrite: new(action.Rewrite)} },
		"balance": func(z *Zone) { z.Actions = &Actions{LoadBalance: new(action.LoadBalance)} },
		"dns64": func(z *Zone) {
			z.Actions = &Actions{DNS64: &action.DNS64{Prefix: netip.MustParsePrefix("64:ff9b::/96")}}
		},
		"nsid":    func(z *Zone) { z.Actions = &Actions{NSID: "name"} },
		"bufsize": func(z *Zone) { z.Actions = &Actions{MaxUDP: 512} },
		"probe":   func(z *Zone) { z.uncounted = true },
	}
	c := newCache(t)
	address := func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		return reply(t, m, m.Question[0].Name+" 60 IN A 192.0.2.1"), nil
	}
	zones := []*Zone{zone("plain.", c, address)}
	for name, change := range changes {
		z := zone(name+".", c, address)
		change(z)
		zones = append(zones, z)
	}
	ts, fast := newTestServer(t, Config{}), &names{got: make(map[string]bool)}
	if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: zones, Fastpath: fast}}); err != nil {
		t.Fatal(err)
	}
	for range 5 { // a hit gives the kernel no answer while another goroutine locks that part of the cache
		for name := range changes {
			ts.ask(t, "udp", query("example."+name+".", dns.TypeA))
		}
	}
	waitFor(t, "an answer of the zone without such a directive", func() bool {
		ts.ask(t, "udp", query("example.plain.", dns.TypeA))
		return fast.has("example.plain.")
	})
	for name := range changes {
		if fast.has("example." + name + ".") {
			t.Errorf("%s: the kernel got an answer", name)
		}
	}
}

// TestKernelCounts: what the kernel counts is in CoreDNS's metrics, once.
func TestKernelCounts(t *testing.T) {
	fast := new(puts)
	ts := newTestServer(t, Config{})
	if err := ts.Apply(t.Context(), []Binding{{Addr: ts.addr, Zones: []*Zone{zone(".", newCache(t), nil)}, Fastpath: fast}}); err != nil {
		t.Fatal(err)
	}
	want, k := make(map[string]float64), &fast.counts
	next := uint64(1000)
	count := func(n *uint64, metrics ...string) {
		next++
		*n = next
		for _, m := range metrics {
			want[m] += float64(next)
		}
	}
	for i, label := range map[uint16]string{dns.TypeA: "A", dns.TypeAAAA: "AAAA", dns.TypeHTTPS: "HTTPS", 4711: "other"} {
		index := typeIndexes[min(i, otherType)]
		count(&k.Requests[0][index], "coredns_dns_requests_total 1 udp "+label)
		count(&k.Requests[1][index], "coredns_dns_requests_total 2 udp "+label)
	}
	count(&k.Rcodes[dns.RcodeSuccess], "coredns_dns_responses_total cache NOERROR")
	count(&k.Rcodes[dns.RcodeNameError], "coredns_dns_responses_total cache NXDOMAIN")
	count(&k.DNSSECOK, "coredns_dns_do_requests_total")
	both := []string{"coredns_cache_requests_total", "coredns_dns_request_duration_seconds le 0.00025", "nodens_server_hit_duration_seconds le 0.00025"}
	count(&k.Lookups[0], append(both, "coredns_cache_hits_total success")...)
	count(&k.Lookups[1], append(both, "coredns_cache_hits_total denial")...)
	for i := range k.QuerySizes {
		count(&k.QuerySizes[i], fmt.Sprintf("coredns_dns_request_size_bytes udp le %v", sizeBounds[i]))
		count(&k.ReplySizes[i], fmt.Sprintf("coredns_dns_response_size_bytes udp le %v", sizeBounds[i]))
	}
	count(&k.QueryBytes, "coredns_dns_request_size_bytes udp sum")
	count(&k.ReplyBytes, "coredns_dns_response_size_bytes udp sum")
	for range 2 {
		if got := ts.exported(t, "."); !maps.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	}
}

// exported returns the metrics of a zone that are not 0, by name and the values of the
// other labels. A bucket counts only the values between its bounds.
func (ts *testServer) exported(t *testing.T, zone string) map[string]float64 {
	t.Helper()
	families, err := ts.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			key, own := f.GetName(), false
			for _, l := range m.Label {
				switch l.GetName() {
				case "zone", "zones":
					own = l.GetValue() == zone
				case "server", "view":
				default:
					key += " " + l.GetValue()
				}
			}
			if !own {
				continue
			}
			all[key] = m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				all[key+" sum"] = h.GetSampleSum()
				below := uint64(0)
				for _, b := range h.Bucket {
					all[fmt.Sprintf("%s le %v", key, b.GetUpperBound())] = float64(b.GetCumulativeCount() - below)
					below = b.GetCumulativeCount()
				}
				all[fmt.Sprintf("%s le %v", key, math.Inf(1))] = float64(h.GetSampleCount() - below)
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, v float64) bool { return v == 0 })
	return all
}
