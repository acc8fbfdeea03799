package querystats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/nodens-dns/nodens/internal/server/dnsname"
)

// All statistics fit into one budget.
func TestBudget(t *testing.T) {
	const names = maxZones * (maxName + int(unsafe.Sizeof("")))
	if n := int(unsafe.Sizeof(Stats{})) + names; n > 2<<20 {
		t.Errorf("%d bytes, want at most %d", n, 2<<20)
	}
}

var start = time.Unix(1e9, 0)

func packed(t *testing.T, name string) []byte {
	t.Helper()
	b, err := dnsname.Pack(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// stream is a Zipf stream of names, with as many names that are queried once.
type stream struct {
	stats   *Stats
	zone    Zone
	sampler Sampler
	random  *rand.Rand
	zipf    *rand.Zipf
	names   [][]byte
	exact   []int // by name
	total   int
	samples int
}

func newStream(t *testing.T) *stream {
	s := &stream{stats: New(start), random: rand.New(rand.NewPCG(1, 2)), exact: make([]int, 20000)}
	s.zone = s.stats.Zone("cluster.local.")
	s.zipf = rand.NewZipf(s.random, 1.1, 2, uint64(len(s.exact)-1))
	for i := range s.exact {
		s.names = append(s.names, packed(t, fmt.Sprintf("service-%d.some-namespace.svc.cluster.local.", i)))
	}
	return s
}

// batch queries n names at once.
func (s *stream) batch(n int, now time.Time) {
	var samples [64]Sample
	chosen := 0
	once := packedOnce
	for range n {
		name := s.total
		s.total++
		var wire []byte
		if name%2 == 0 {
			i := s.zipf.Uint64()
			s.exact[i]++
			wire = s.names[i]
		}
		weight, ok := s.sampler.Next(s.stats)
		if !ok {
			continue
		}
		if wire == nil {
			wire = fmt.Appendf(slices.Clone(once[:1]), "%015d", name)
			wire = append(wire, once[16:]...)
		}
		samples[chosen] = Sample{Name: wire, Client: netip.AddrFrom4([4]byte{10, 0, 0, byte(name)}), Zone: s.zone, Weight: weight}
		chosen++
	}
	s.samples += chosen
	if chosen > 0 {
		s.stats.Add(samples[:chosen], 20*time.Microsecond, now)
	}
}

var packedOnce = []byte("\x0fxxxxxxxxxxxxxxx\x07example\x03com\x00")

// check compares names with a share above 1% with their exact counts and, without sampling,
// all names with the bounds of their errors.
func (s *stream) check(t *testing.T, l Lists) {
	t.Helper()
	if off := math.Abs(float64(l.Queries)/float64(s.total) - 1); off > 0.01 {
		t.Errorf("%d queries counted, want %d", l.Queries, s.total)
	}
	got := make(map[string]uint64)
	for _, v := range l.Names {
		got[v.Name] = v.Queries
	}
	checked := 0
	for i, n := range s.exact {
		if n*100 < s.total {
			continue
		}
		checked++
		name := dnsname.String(s.names[i])
		if off := float64(got[name])/float64(n) - 1; math.Abs(off) > 0.05 {
			t.Errorf("%s: %d, want %d (%+.1f%%)", name, got[name], n, 100*off)
		}
	}
	if checked < 5 {
		t.Errorf("only %d names have more than 1%%", checked)
	}
	exact := make(map[string]uint64)
	for i, n := range s.exact {
		exact[dnsname.String(s.names[i])] = uint64(n)
	}
	for _, v := range l.Names {
		if n := max(exact[v.Name], 1); s.samples == s.total && (v.Queries+v.Error < n || v.Queries > n+v.Error) {
			t.Errorf("%s: %d ± %d, want %d", v.Name, v.Queries, v.Error, n)
		}
	}
}

// Counts of names with more than 1% of the queries are within 5%, with and without
// sampling. There are enough samples that 5% are three standard deviations at 1%.
func TestNamesAreExact(t *testing.T) {
	const enough = 3 * 3 * 0.99 / 0.01 / (0.05 * 0.05) // samples of a minute
	for _, rate := range []int{2_000, sampleRate*3/2 + 100, 40_000} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			s, now := newStream(t), start
			for next := start; now.Before(start.Add(70 * time.Second)); now = now.Add(time.Second * 64 / time.Duration(rate)) {
				s.batch(64, now)
				if now.Sub(next) >= Interval {
					next = now
					s.stats.Rotate(now)
				}
			}
			if stride := s.stats.stride.Load(); (stride > 1) != (rate > sampleRate+sampleRate/2) {
				t.Errorf("one of %d is sampled", stride)
			}
			if stride := s.stats.stride.Load(); stride > 1 && float64(s.samples) < enough*now.Sub(start).Minutes() {
				t.Errorf("%d samples in %v", s.samples, now.Sub(start))
			}
			l := s.stats.Top("", Minute, now)
			if l.Covers != now.Sub(start) {
				t.Errorf("covers %v", l.Covers)
			}
			s.check(t, l)
		})
	}
}

// The lists of an hour are sums of those of shorter periods.
func TestHour(t *testing.T) {
	s := newStream(t)
	now := start
	for range 4 * 60 {
		for range 200 {
			now = now.Add(Interval / 200)
			s.batch(16, now)
		}
		s.stats.Rotate(now)
	}
	for i, want := range []time.Duration{time.Minute, 5 * time.Minute, time.Hour} {
		if c := s.stats.Top("", Window(i), now).Covers; c < want || c > want+want/4 {
			t.Errorf("%v covers %v", want, c)
		}
	}
	s.check(t, s.stats.Top("", Hour, now))
}

// Windows keep their length and expire older queries.
func TestWindows(t *testing.T) {
	s := New(start)
	zone := s.Zone(".")
	old, young := packed(t, "old.example."), packed(t, "young.example.")
	now := start
	ask := func(name []byte) {
		now = now.Add(Interval)
		s.Add([]Sample{{Name: name, Zone: zone, Weight: 1}}, time.Millisecond, now)
		s.Rotate(now)
	}
	for range 4 * 100 {
		ask(old)
	}
	for i, want := range [3][2]time.Duration{{time.Minute, time.Minute}, {5 * time.Minute, 6 * time.Minute}, {60 * time.Minute, 76 * time.Minute}} {
		l := s.Top("", Window(i), now)
		if l.Covers < want[0] || l.Covers > want[1] || l.Queries != uint64(l.Covers/Interval) || l.Names[0].Queries != l.Queries {
			t.Errorf("window %d: %+v", i, l)
		}
	}
	for i, after := range []int{4, 4*5 + 3, 4*70 + 23} { // rotations after which all queries have expired
		for range after {
			ask(young)
		}
		l := s.Top("", Window(i), now)
		if len(l.Names) != 1 || l.Names[0].Name != "young.example." {
			t.Errorf("window %d after %d rotations: %+v", i, after, l)
		}
	}
}

func TestLists(t *testing.T) {
	s := New(start)
	cluster, rest := s.Zone("cluster.local."), s.Zone(".")
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	add := func(name string, client netip.Addr, z Zone, times int, took time.Duration, denied, waited bool) {
		for range times {
			s.Add([]Sample{{Name: packed(t, name), Client: client, Zone: z, Weight: 1, NXDomain: denied, Waited: waited}}, took, start)
		}
	}
	add("api.ns.svc.cluster.local.", a, cluster, 30, time.Microsecond, false, false)
	add("Slow.example.", a, rest, 2, 2*time.Second, false, true)
	add("quick.example.", b, rest, 10, time.Millisecond, false, true)
	add("gone.example.", b, rest, 5, time.Millisecond, true, false)
	long := strings.Repeat("abcdefghi.", 20)
	s.AddAnswered([]byte("\x03API\x02ns\x03svc\x07cluster\x05local\x00"), cluster, false, 100)
	s.AddAnswered(packed(t, long), rest, false, 1)
	s.AddClient(b, cluster, 4)
	for _, rotated := range []bool{false, true} {
		if rotated {
			s.Rotate(start.Add(Interval))
		}
		l := s.Top("", Minute, start.Add(Interval))
		if l.Queries != 148 || len(l.Names) != 5 || l.Names[0] != (Value{Name: "api.ns.svc.cluster.local.", Zone: "cluster.local.", Queries: 130}) {
			t.Errorf("names: %+v", l)
		}
		if last := l.Names[4].Name; !strings.HasPrefix(long, strings.TrimSuffix(last, "…")) || len(last) < 75 {
			t.Errorf("long name: %s", last)
		}
		if want := []Value{{Client: a, Queries: 32}, {Client: b, Queries: 19}}; !slices.Equal(l.Clients, want) {
			t.Errorf("clients: %+v", l.Clients)
		}
		if len(l.Denied) != 1 || l.Denied[0].Name != "gone.example." || l.Denied[0].Queries != 5 {
			t.Errorf("denied: %+v", l.Denied)
		}
		if len(l.Slow) != 2 || l.Slow[0] != (Value{Name: "slow.example.", Zone: ".", Queries: 2, Waited: 4 * time.Second}) {
			t.Errorf("slow: %+v", l.Slow)
		}
		l = s.Top(".", Minute, start)
		if l.Queries != 18 || len(l.Names) != 4 || !slices.Equal(l.Clients, []Value{{Client: b, Queries: 15}, {Client: a, Queries: 2}}) {
			t.Errorf("one zone: %+v", l)
		}
		if l = s.Top("other.", Minute, start); l.Queries != 0 || len(l.Names)+len(l.Clients) != 0 {
			t.Errorf("unknown zone: %+v", l)
		}
	}
}

// A list that is full keeps the first names of a small zone.
func TestSmallZone(t *testing.T) {
	s := New(start)
	small, large := s.Zone("small."), s.Zone("large.")
	for i := range 600 {
		s.AddAnswered(packed(t, fmt.Sprintf("name-%d.large.", i)), large, false, 10)
	}
	s.AddAnswered(packed(t, "name.small."), small, false, 1)
	s.Rotate(start.Add(Interval))
	// The name may have evicted another one, with 10 queries.
	if l := s.Top("small.", Minute, start.Add(Interval)); len(l.Names) != 1 || l.Names[0].Queries > 1+l.Names[0].Error || l.Names[0].Error > 5 {
		t.Errorf("%+v", l)
	}
	l := s.Top("", Minute, start.Add(Interval))
	if len(l.Names) != listed || l.Names[0].Error != 0 && l.Names[0].Queries == 0 {
		t.Errorf("%+v", l)
	}
}

// A list evicts a name for a while. The name's error bound covers the loss.
func TestErrorBound(t *testing.T) {
	s, now := New(start), start
	zone := s.Zone(".")
	name := packed(t, "name.example.")
	for _, n := range []uint32{100, 1} { // in the second interval, other names evict it
		for i := range 2000 {
			s.AddAnswered(packed(t, fmt.Sprintf("%d.example.", i)), zone, false, 2)
		}
		s.AddAnswered(name, zone, false, n)
		now = now.Add(Interval)
		s.Rotate(now)
	}
	for _, v := range s.Top("", Minute, now).Names {
		if v.Name == "name.example." {
			if v.Queries+v.Error < 101 || v.Queries > 101+v.Error {
				t.Errorf("%+v, want 101", v)
			}
			return
		}
	}
	t.Error("the most frequent name is missing")
}

// The error bound of a client covers the zones that do not list it.
func TestErrorBoundOfClients(t *testing.T) {
	s := New(start)
	client := netip.MustParseAddr("fd00::1")
	add := func(c netip.Addr, zone string, n uint32) {
		s.Add([]Sample{{Name: packed(t, "www."+zone), Client: c, Zone: s.Zone(zone), Weight: n}}, 0, start)
	}
	add(client, "large.", 2000)
	add(client, "small.", 50)
	for i := range 2000 { // these drive it out of the list of one zone
		add(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "small.", 60)
	}
	for zone, want := range map[string]uint64{"": 2050, "large.": 2000} {
		l := s.Top(zone, Minute, start)
		i := slices.IndexFunc(l.Clients, func(v Value) bool { return v.Client == client })
		if i < 0 || l.Clients[i].Queries+l.Clients[i].Error < want {
			t.Errorf("zone %q: %+v, want %d", zone, l.Clients, want)
		}
	}
}

func TestZones(t *testing.T) {
	s := New(start)
	for i := range 2 * maxZones {
		z := s.Zone(fmt.Sprintf("%d.example.", i))
		if int(z) != min(i, maxZones-1) || z != s.Zone(fmt.Sprintf("%d.example.", i)) {
			t.Errorf("zone %d has number %d", i, z)
		}
	}
}

func TestLatency(t *testing.T) {
	s := New(start)
	z := s.Zone(".")
	for i := range 1000 {
		d := time.Duration(i+1) * time.Millisecond
		s.Add([]Sample{{Zone: z, Weight: 2, Waited: true}}, d, start)
	}
	s.Add([]Sample{{Zone: z, Weight: 1}}, 3*time.Nanosecond, start)
	s.Add([]Sample{{Zone: z, Weight: 1}}, time.Hour, start)
	near := func(got, want time.Duration) bool {
		return math.Abs(float64(got-want)) <= 0.07*float64(want)
	}
	hit, miss := s.Latency(z)
	if hit.Count != 2 || miss.Count != 2000 || !near(miss.P50, 500*time.Millisecond) || !near(miss.P90, 900*time.Millisecond) || !near(miss.P99, 990*time.Millisecond) {
		t.Errorf("%+v, %+v", hit, miss)
	}
	for i := range 10 {
		s.Rotate(start.Add(time.Duration(i+1) * Interval))
	}
	if hit, miss = s.Latency(z); hit.Count+miss.Count != 0 {
		t.Errorf("old ones stay: %+v, %+v", hit, miss)
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	s := New(start)
	sample := []Sample{{Name: packed(t, "www.example."), Client: netip.MustParseAddr("10.0.0.1"), Zone: s.Zone("."), Weight: 1, NXDomain: true, Waited: true}}
	if n := testing.AllocsPerRun(1000, func() { s.Add(sample, time.Millisecond, start) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	s := New(start)
	name, _ := dnsname.Pack("service-1.some-namespace.svc.cluster.local.")
	sample := []Sample{{Name: name, Client: netip.MustParseAddr("10.0.0.1"), Zone: s.Zone("."), Weight: 1}}
	b.ReportAllocs()
	for b.Loop() {
		s.Add(sample, time.Millisecond, start)
	}
}

func BenchmarkTop(b *testing.B) {
	s, now := New(start), start
	z := s.Zone(".")
	for i := range 300 {
		for k := range 1000 {
			name, _ := dnsname.Pack(fmt.Sprintf("service-%d.some-namespace.svc.cluster.local.", k*k%(700+i)))
			s.AddAnswered(name, z, false, 1)
		}
		now = now.Add(Interval)
		s.Rotate(now)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Top("", Hour, now)
	}
}
