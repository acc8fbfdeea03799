package normalize

import (
	"fmt"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// hits is the number of repetitions of each question in the cost test.
const hits = 20

// counts are the numbers of A and AAAA queries at the upstream.
type counts [2]int

var costs = []struct {
	kinds   pair
	zone    string
	a, aaaa counts // for queries of this type alone
	both    counts // for both types at once
}{
	{pair{nodata, nodata}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{nodataSOA, nodataSOA}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{nodata, nx}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{nx, nx}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{data, nodataSOA}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{data, nx}, suffix, counts{1, 1}, counts{1, 1}, counts{1, 1}},
	{pair{data, data}, suffix, counts{1, 1}, counts{0, 1}, counts{1, 1}},
	{pair{nsecNone, nsecNone}, suffix, counts{1, 1}, counts{0, 1}, counts{1, 1}},
	{pair{nsecOther, nsecOther}, suffix, counts{1, 1}, counts{0, 1}, counts{1, 1}},
	{pair{nodataSOA, nodataSOA}, outside, counts{1, 0}, counts{0, 1}, counts{1, 1}},
	{pair{nx, nx}, outside, counts{1, 0}, counts{0, 1}, counts{1, 1}},
}

// TestUpstreamCost counts queries at the upstream. For an A query below a suffix,
// nodens queries both types at once. For an AAAA query, it queries A only if the
// verdict depends on it. It queries each type once.
func TestUpstreamCost(t *testing.T) {
	t.Parallel()
	names := make(script)
	for i, cs := range costs {
		for _, how := range []string{"one1", "one28", "both"} {
			names[fmt.Sprintf("c%d-%s", i, how)] = cs.kinds
		}
	}
	c, u := nodeWith(t, buildRace, names.answer, "")
	check := func(what, name string, want counts) {
		t.Helper()
		got := counts{u.count(name, dns.TypeA), u.count(name, dns.TypeAAAA)}
		if got != want {
			t.Errorf("%s: %d A and %d AAAA queries at the upstream, want %d and %d", what, got[0], got[1], want[0], want[1])
		}
	}
	for i, cs := range costs {
		for qtype, want := range map[uint16]counts{dns.TypeA: cs.a, dns.TypeAAAA: cs.aaaa} {
			name := fmt.Sprintf("c%d-one%d.%s", i, qtype, cs.zone)
			for range hits {
				c.ask(t, onAddr, name, qtype)
			}
			check(fmt.Sprintf("%v in %s, %s alone", cs.kinds, cs.zone, dns.Type(qtype)), name, want)
		}
		name := fmt.Sprintf("c%d-both.%s", i, cs.zone)
		for range hits {
			c.askBoth(t, name)
		}
		check(fmt.Sprintf("%v in %s, both at once", cs.kinds, cs.zone), name, cs.both)
	}
}

// askBoth sends an A and an AAAA query at once from one socket, as stubs do, and
// waits for both replies.
func (c *cluster) askBoth(t testing.TB, name string) {
	t.Helper()
	conn, err := c.pod.DialContext(t.Context(), "udp", onAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	dc := &dns.Conn{Conn: conn}
	_ = conn.SetDeadline(time.Now().Add(lab.QueryTimeout))
	for _, qtype := range bothTypes {
		if err := dc.WriteMsg(lab.Query(name, qtype)); err != nil {
			t.Fatal(err)
		}
	}
	for range bothTypes {
		if _, err := dc.ReadMsg(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

// TestUpstreamCostPerTTL sends A queries for several TTLs of the answer. Each TTL
// causes at most one AAAA query.
func TestUpstreamCostPerTTL(t *testing.T) {
	t.Parallel()
	const lives = 3
	name := "short." + suffix
	c, u := nodeWith(t, buildRace, func(q *dns.Msg, proto string) *dns.Msg {
		r := nodataSOA.answer(q, proto, suffix, s1)
		r.Ns[0].Header().Ttl = 1
		return r
	}, "")
	asked := 0
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for u.count(name, dns.TypeA) < lives {
		if r := c.ask(t, onAddr, name, dns.TypeA); r.Rcode != dns.RcodeNameError {
			t.Fatalf("%s, want NXDOMAIN", dns.RcodeToString[r.Rcode])
		}
		asked++
		<-tick.C
	}
	if n := u.count(name, dns.TypeAAAA); n < lives-1 || n > lives {
		t.Errorf("%d AAAA queries in %d TTLs of the A answer", n, lives)
	}
	if asked <= 2*lives {
		t.Errorf("%d queries in %d TTLs: no hits", asked, lives)
	}
}
