package normalize

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The pod searches s1.example, where each cell of the table has a name with the
// replies of its row, and then s2.example, where all names exist.
const search = "search s1.example s2.example\noptions ndots:5\n"

var (
	s1 = host{"192.0.2.1", "2001:db8::1"}
	s2 = host{"192.0.2.2", "2001:db8::2"}
)

// outcome is the result of a lookup.
type outcome string

const (
	first   outcome = "s1"     // all addresses in s1.example
	second  outcome = "s2"     // all addresses in s2.example
	none    outcome = "none"   // the stub reports that the name does not exist
	failure outcome = "failed" // the stub reports a failure
	other   outcome = "other"  // other addresses
)

// row is a row of the table of stubs.
type row struct {
	a, aaaa     kind               // replies in s1.example
	musl, glibc outcome            // directly; measured with musl 1.2.3 and glibc 2.36
	stalls      string             // those of these two clients that wait for 5 s or more directly
	nodens      outcome            // through nodens
	limits      map[string]outcome // clients for which nodens cannot do better
}

// lookupLimit is the limit for a lookup through nodens. Stubs wait for 5 s before
// they retry; nothing else here takes seconds.
const lookupLimit = 4 * time.Second

// musl treats replies with another rcode than NOERROR and NXDOMAIN as no reply,
// and nodens has no other truthful reply.
var muslWaits = map[string]outcome{"musl": failure}

var rows = []row{
	{a: nodata, aaaa: nodata, musl: none, glibc: second, nodens: second},
	{a: nodataSOA, aaaa: nodataSOA, musl: none, glibc: second, nodens: second},
	{a: nx, aaaa: nx, musl: second, glibc: second, nodens: second},
	{a: nodata, aaaa: nx, musl: second, glibc: second, nodens: second},
	{a: nx, aaaa: nodata, musl: second, glibc: second, nodens: second},
	{a: data, aaaa: nx, musl: second, glibc: first, nodens: first},
	{a: nx, aaaa: data, musl: second, glibc: first, nodens: first},
	{a: data, aaaa: nodata, musl: first, glibc: first, nodens: first},
	{a: nodata, aaaa: data, musl: first, glibc: first, nodens: first},
	{a: data, aaaa: data, musl: first, glibc: first, nodens: first},
	// Go continues its search, as it does directly.
	{a: aliasND, aaaa: aliasND, musl: none, glibc: none, nodens: none, limits: map[string]outcome{"go": second}},
	{a: aliasNX, aaaa: aliasNX, musl: second, glibc: second, nodens: second},
	{a: tcEmpty, aaaa: tcEmpty, musl: none, glibc: first, nodens: first},
	{a: servfail, aaaa: servfail, musl: failure, glibc: second, stalls: "musl", nodens: second, limits: muslWaits},
	{a: refused, aaaa: refused, musl: failure, glibc: none, stalls: "musl", nodens: second, limits: muslWaits},
	{a: formerr, aaaa: formerr, musl: failure, glibc: none, stalls: "musl", nodens: second, limits: muslWaits},
	// nodens stops waiting for one type after 2 s, because the name has the
	// other.
	{a: data, aaaa: silence, musl: failure, glibc: first, stalls: "musl glibc", nodens: first},
}

// slow reports whether stubs need seconds for the row.
func (r row) slow() bool { return r.stalls != "" }

func (r row) String() string { return fmt.Sprintf("%s / %s", r.a, r.aaaa) }

func (r row) kind(qtype uint16) kind {
	if qtype == dns.TypeA {
		return r.a
	}
	return r.aaaa
}

// outcome classifies the result of a client that requests types of the row.
func (r row) outcome(res lab.Lookup, types []uint16) outcome {
	if res.Err != "" {
		switch res.Err {
		case "EAI_NONAME", "EAI_NODATA", "not_found", "ENOTFOUND", "ENODATA", "EMPTY":
			return none
		}
		return failure
	}
	var in1, in2 []string
	for _, qtype := range types {
		if k := r.kind(qtype); k == data || k == tcEmpty {
			in1 = append(in1, s1.addr(qtype))
		}
		in2 = append(in2, s2.addr(qtype))
	}
	switch {
	case slices.Equal(res.Data, in1):
		return first
	case slices.Equal(res.Data, in2):
		return second
	}
	return other
}

// timing delays the replies for one address type.
type timing struct {
	late uint16 // the delayed type
	by   time.Duration
}

// swap is the shortest delay that changes the order of the two replies.
const swap = 5 * time.Millisecond

var timings = []timing{
	{dns.TypeAAAA, swap}, {dns.TypeAAAA, 50 * time.Millisecond}, {dns.TypeAAAA, 200 * time.Millisecond},
	{dns.TypeA, swap}, {dns.TypeA, 50 * time.Millisecond}, {dns.TypeA, 200 * time.Millisecond},
	// Longer than sibling_timeout.
	{dns.TypeAAAA, 600 * time.Millisecond}, {dns.TypeA, 600 * time.Millisecond},
}

func (tm timing) String() string { return fmt.Sprintf("%s %v late", dns.Type(tm.late), tm.by) }

// wait returns when it is time to send the reply to q.
func (tm timing) wait(t testing.TB, q *dns.Msg) {
	if q.Question[0].Qtype == tm.late {
		hold(t, tm.by)
	}
}

// hold is the response time of a server.
func hold(t testing.TB, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// cell is one lookup: a row, a timing, a client, and its way.
type cell struct {
	row    int
	timing int
	client string
	way    string // "direct" or "nodens"
}

// name is the name of the cell for the n-th lookup, a single label. Each lookup
// has its own name, so that no answer comes from the cache.
func (c cell) name(n int) string {
	return strings.ToLower(fmt.Sprintf("r%d-t%d-%s-%s-n%d", c.row, c.timing, c.client, c.way, n))
}

// tableAnswer answers the names of cells.
func tableAnswer(t testing.TB) func(q *dns.Msg, proto string) *dns.Msg {
	return func(q *dns.Msg, proto string) *dns.Msg {
		label, zone, _ := strings.Cut(dns.CanonicalName(q.Question[0].Name), ".")
		var i, j int
		if _, err := fmt.Sscanf(label, "r%d-t%d-", &i, &j); err != nil || i >= len(rows) || j >= len(timings) {
			return nx.answer(q, proto, ".", host{}) // nodens's health check
		}
		timings[j].wait(t, q)
		switch zone {
		case "s1.example.":
			return rows[i].kind(q.Question[0].Qtype).answer(q, proto, zone, s1)
		case "s2.example.":
			return data.answer(q, proto, zone, s2)
		}
		return nx.answer(q, proto, ".", host{})
	}
}

// table is the environment in which the cells are looked up.
type table struct {
	ways    map[string]pod
	clients []client

	mu      sync.Mutex
	results map[cell]lab.Lookup
}

func newTable(t *testing.T) *table {
	t.Helper()
	c := newCluster(t)
	up := c.addServer(t, "upstream")
	startUpstream(t, up.netns, tableAnswer(t), up.forNode, up.forPod)
	c.start(t, buildPlain, "nameserver "+up.forNode+"\nsearch s1.example s2.example\n", `. {
		errors
		cache 30
		bind `+localIP+`
		forward . /etc/resolv.conf
	}`)
	return &table{
		ways: map[string]pod{
			"direct": newPod(t, c.pod, "nameserver "+up.forPod+"\n"+search),
			"nodens": newPod(t, c.pod, "nameserver "+localIP+"\n"+search),
		},
		clients: newClients(t),
		results: make(map[cell]lab.Lookup),
	}
}

// run lets one client look up all the cells of slow or other rows both ways.
func (tb *table) run(t *testing.T, c client, slow bool) {
	var cells []cell
	for i, r := range rows {
		for j := range timings {
			if r.slow() == slow {
				cells = append(cells, cell{i, j, c.name, "direct"}, cell{i, j, c.name, "nodens"})
			}
		}
	}
	tb.lookUp(t, c, cells, 0)
}

// lookUp lets one client look up the cells for the n-th time, all at once.
func (tb *table) lookUp(t *testing.T, c client, cells []cell, n int) {
	var wg sync.WaitGroup
	for way, p := range tb.ways {
		named := make(map[string]cell)
		for _, cl := range cells {
			if cl.way != way {
				continue
			}
			name := cl.name(n)
			if c.noSearch {
				name += ".s1.example"
			}
			named[name] = cl
		}
		wg.Go(func() {
			results := p.lookup(t, c, slices.Sorted(maps.Keys(named))...)
			tb.mu.Lock()
			defer tb.mu.Unlock()
			for name, r := range results {
				tb.results[named[name]] = r
			}
		})
	}
	wg.Wait()
}

// atOnce is the number of failed cells that are retried at once.
const atOnce = 8

// again retries the failed cells, a few at a time. With hundreds of lookups at
// once a slow machine makes stubs, and nodens, time out before replies arrive.
func (tb *table) again(t *testing.T, n int) {
	t.Helper()
	for _, c := range tb.clients {
		var cells []cell
		for i := range rows {
			for j := range timings {
				direct, nodens := tb.problems(i, j, c)
				if direct == "" && nodens == "" {
					continue
				}
				t.Logf("retried: %s %s", direct, nodens)
				cells = append(cells, cell{i, j, c.name, "direct"}, cell{i, j, c.name, "nodens"})
			}
		}
		for some := range slices.Chunk(cells, 2*atOnce) {
			tb.lookUp(t, c, some, n)
		}
	}
}

// TestStubs looks up every row of the table with every stub, directly and through
// nodens. Through nodens no stub gets the wrong host, fails where glibc succeeds
// directly, or stalls, except for the limits of the rows.
func TestStubs(t *testing.T) {
	t.Parallel()
	tb := newTable(t)
	var wg sync.WaitGroup
	for _, c := range tb.clients {
		wg.Go(func() { tb.run(t, c, true) })
	}
	for _, c := range tb.clients { // one client at a time: a slow machine must not delay the upstream's replies
		tb.run(t, c, false)
	}
	wg.Wait()
	for n := 1; n <= 3; n++ {
		tb.again(t, n)
	}
	if t.Failed() {
		return
	}
	tb.log(t)
	t.Run("directly", tb.checkDirect)
	t.Run("through nodens", tb.checkNodens)
}

// problems lists the errors in the results of a lookup, directly and through
// nodens.
func (tb *table) problems(row, timing int, c client) (direct, nodens string) {
	d, n := tb.results[cell{row, timing, c.name, "direct"}], tb.results[cell{row, timing, c.name, "nodens"}]
	r := rows[row]
	what := fmt.Sprintf("%s, %s, %s: ", r, timings[timing], c.name)
	if direct = r.judgeDirect(c, d); direct != "" {
		direct = what + direct
	}
	if nodens = r.judgeNodens(c, d, n); nodens != "" {
		nodens = what + nodens
	}
	return direct, nodens
}

// each calls f with the problems about every lookup.
func (tb *table) each(f func(direct, nodens string)) {
	for i := range rows {
		for _, c := range tb.clients {
			for j := range timings {
				f(tb.problems(i, j, c))
			}
		}
	}
}

// checkDirect compares the results without nodens with the table.
func (tb *table) checkDirect(t *testing.T) {
	if v := muslVersion(t); v != "1.2.3" {
		lab.Skip(t, fmt.Sprintf("the table is for musl 1.2.3, this is %q", v))
	}
	tb.each(func(direct, _ string) {
		if direct != "" {
			t.Error(direct)
		}
	})
}

func (r row) judgeDirect(c client, direct lab.Lookup) string {
	want, ok := map[string]outcome{"musl": r.musl, "glibc": r.glibc}[c.name]
	if !ok {
		return ""
	}
	if got := r.outcome(direct, c.types); got != want {
		return fmt.Sprintf("%s (%s), want %s", got, direct, want)
	}
	if strings.Contains(r.stalls, c.name) && direct.Took < lookupLimit {
		return fmt.Sprintf("%s, without a stall", direct)
	}
	return ""
}

// muslVersion is the version that musl's loader prints. The loader is in the same
// package as the library that the client is linked with.
func muslVersion(t *testing.T) string {
	t.Helper()
	loaders, err := filepath.Glob("/lib/ld-musl-*.so.1")
	if err != nil || len(loaders) == 0 {
		return ""
	}
	out, _ := exec.Command(loaders[0]).CombinedOutput() // exits with 1
	_, version, _ := strings.Cut(string(out), "Version ")
	version, _, _ = strings.Cut(version, "\n")
	return version
}

func (tb *table) checkNodens(t *testing.T) {
	tb.each(func(_, nodens string) {
		if nodens != "" {
			t.Error(nodens)
		}
	})
}

func (r row) judgeNodens(c client, direct, nodens lab.Lookup) string {
	if c.noSearch {
		return r.judgeNoSearch(c, direct, nodens)
	}
	want, limited := r.limits[c.name]
	if !limited {
		want = r.nodens
	}
	if got := r.outcome(nodens, c.types); got != want {
		return fmt.Sprintf("%s (%s), want %s", got, nodens, want)
	}
	if want != failure && nodens.Took >= lookupLimit {
		return fmt.Sprintf("stalls: %s", nodens)
	}
	return ""
}

// judgeNoSearch: a stub that requests one type of one name gets the same
// addresses as directly, or learns that there are none.
func (r row) judgeNoSearch(c client, direct, nodens lab.Lookup) string {
	got, want := r.outcome(nodens, c.types), r.outcome(direct, c.types)
	if got != want {
		return fmt.Sprintf("%s (%s), directly %s (%s)", got, nodens, want, direct)
	}
	if !r.slow() && nodens.Took >= lookupLimit {
		return fmt.Sprintf("stalls: %s", nodens)
	}
	return ""
}

// log prints the measured table: a line per row and client, with the slowest of
// its timings, and the differences among them.
func (tb *table) log(t *testing.T) {
	t.Helper()
	for i, r := range rows {
		for _, c := range tb.clients {
			line := fmt.Sprintf("%-31s %-13s", r, c.name)
			for _, way := range []string{"direct", "nodens"} {
				line += fmt.Sprintf("  %s: %-22s", way, tb.summary(i, c, way))
			}
			if want, ok := r.limits[c.name]; ok {
				line += fmt.Sprintf("  (limit: not %s but %s)", r.nodens, want)
			}
			t.Log(line)
		}
	}
}

func (tb *table) summary(i int, c client, way string) string {
	outcomes := make(map[string]bool)
	var most time.Duration
	for j := range timings {
		res := tb.results[cell{i, j, c.name, way}]
		o := string(rows[i].outcome(res, c.types))
		if res.Err != "" {
			o = res.Err
		}
		outcomes[o] = true
		most = max(most, res.Took)
	}
	return fmt.Sprintf("%s %.1fs", strings.Join(slices.Sorted(maps.Keys(outcomes)), "|"), most.Seconds())
}
