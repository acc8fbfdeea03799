package normalize

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// judged is one question and the verdict in nodens_normalize_total; empty: none.
type judged struct {
	pair
	zone   string
	qtype  uint16
	do     bool
	result string
}

var judgements = []judged{
	{pair{nodata, nodata}, suffix, dns.TypeA, false, "rewritten"},
	{pair{nodataSOA, nodataSOA}, suffix, dns.TypeAAAA, false, "rewritten"},
	{pair{nodata, nx}, suffix, dns.TypeA, false, "rewritten"},
	{pair{nsecNone, nodata}, suffix, dns.TypeA, false, "rewritten"},
	{pair{nx, data}, suffix, dns.TypeA, false, "repaired"},
	{pair{data, nx}, suffix, dns.TypeAAAA, false, "repaired"},
	{pair{data, nodataSOA}, suffix, dns.TypeAAAA, false, "sibling_data"},
	{pair{nodata, aliasND}, suffix, dns.TypeA, false, "sibling_data"},
	{pair{nodata, servfail}, suffix, dns.TypeA, false, "sibling_unknown"},
	{pair{nodata, silence}, suffix, dns.TypeA, false, "sibling_unknown"},
	// NXDOMAIN with no reply for the other type: the result depends on when that
	// query fails. The tests of package server have both.
	{pair{nodata, nodata}, suffix, dns.TypeA, true, "dnssec"},
	{pair{secure, nodata}, suffix, dns.TypeA, false, "dnssec"},
	{pair{nsecOther, nodata}, suffix, dns.TypeA, false, "dnssec"},
	{pair{aliasND, aliasND}, suffix, dns.TypeA, false, "cname"},
	{pair{aliasNX, aliasNX}, suffix, dns.TypeAAAA, false, "cname"},
	{pair{referral, referral}, suffix, dns.TypeA, false, "referral"},
	{pair{nodata, nodata}, outside, dns.TypeA, false, "scope"},
	{pair{data, data}, suffix, dns.TypeA, false, ""},
	{pair{nx, nx}, suffix, dns.TypeA, false, ""}, // stays NXDOMAIN
	{pair{servfail, servfail}, suffix, dns.TypeA, false, ""},
	{pair{nodata, nodata}, suffix, dns.TypeMX, false, ""},
}

func (j judged) String() string {
	return fmt.Sprintf("%v in %s, %s, DO %t", j.pair, j.zone, dns.Type(j.qtype), j.do)
}

func (j judged) name(i int) string { return fmt.Sprintf("j%d.%s", i, j.zone) }

func (j judged) ask(t *testing.T, c *cluster, i int) {
	t.Helper()
	var opts []func(*dns.Msg)
	if j.do {
		opts = append(opts, withDO)
	}
	c.ask(t, onAddr, j.name(i), j.qtype, opts...)
}

func judgementScript() script {
	names := make(script)
	for i, j := range judgements {
		names[fmt.Sprintf("j%d", i)] = j.pair
	}
	return names
}

// series are the counters of a family by their labels.
func series(m lab.Metrics, family string) map[string]float64 {
	all := make(map[string]float64)
	if m[family] == nil {
		return all
	}
	for _, metric := range m[family].Metric {
		var labels []string
		for _, l := range metric.Label {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		all[strings.Join(labels, ",")] = metric.GetCounter().GetValue()
	}
	return all
}

// changed is the difference between before and after.
func changed(before, after map[string]float64) map[string]float64 {
	diff := make(map[string]float64)
	for k, v := range after {
		if v != before[k] {
			diff[k] = v - before[k]
		}
	}
	return diff
}

func (j judged) series() string {
	return fmt.Sprintf("qtype=%s,result=%s,zone=.", dns.Type(j.qtype), j.result)
}

// waitForChange scrapes until the counters of a family have changed as wanted: nodens
// counts a reply after it has sent it. It returns the last scrape. Further
// changes show there, or at the next step.
func (c *cluster) waitForChange(t *testing.T, what string, before lab.Metrics, family string, want map[string]float64) lab.Metrics {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(lab.QueryTimeout)
	for {
		after := c.node.Scrape(t, metrics)
		got := changed(series(before, family), series(after, family))
		if maps.Equal(got, want) {
			return after
		}
		select {
		case <-tick.C:
		case <-late:
			t.Errorf("%s: moves %v, want %v", what, got, want)
			return after
		}
	}
}

// TestMetrics sends every kind of question twice, for a miss and a hit. Each
// increments exactly one counter of nodens_normalize_total, or none.
func TestMetrics(t *testing.T) {
	t.Parallel()
	const family = "nodens_normalize_total"
	c, _ := nodeWith(t, buildRace, judgementScript().answer, "")
	before := c.node.Scrape(t, metrics)
	for i, j := range judgements {
		for _, which := range []string{"miss", "hit"} {
			j.ask(t, c, i)
			want := make(map[string]float64)
			if j.result != "" {
				want[j.series()] = 1
			}
			before = c.waitForChange(t, fmt.Sprintf("%s, %s", j, which), before, family, want)
		}
	}
}

// TestSiblingMetrics: the other type's answer is counted by its source.
func TestSiblingMetrics(t *testing.T) {
	t.Parallel()
	const family, waits = "nodens_normalize_sibling_total", "nodens_normalize_sibling_wait_seconds"
	// nodens asks for AAAA together with A. The gates make AAAA the later answer.
	gates := map[string]gate{"alone": newGate(), "together": newGate()}
	c, _ := nodeWith(t, buildRace, func(q *dns.Msg, proto string) *dns.Msg {
		label, _, _ := strings.Cut(q.Question[0].Name, ".")
		if g, ok := gates[label]; ok {
			g.pass(t, q.Question[0].Qtype)
		}
		return nodataSOA.answer(q, proto, suffix, s1)
	}, "")
	before := c.node.Scrape(t, metrics)
	step := func(what string, want map[string]float64, wantWaits float64) {
		t.Helper()
		after := c.waitForChange(t, what, before, family, want)
		w0, _ := before.Sum(waits)
		w1, _ := after.Sum(waits)
		if w1-w0 != wantWaits {
			t.Errorf("%s: %v waits, want %v", what, w1-w0, wantWaits)
		}
		before = after
	}
	c.ask(t, onAddr, "alone."+suffix, dns.TypeA)
	step("A alone", map[string]float64{"source=upstream": 1}, 1)
	c.ask(t, onAddr, "alone."+suffix, dns.TypeA)
	step("A again", map[string]float64{"source=cache": 1}, 0)
	c.ask(t, onAddr, "alone."+suffix, dns.TypeAAAA)
	step("AAAA after it", map[string]float64{"source=cache": 1}, 0)

	// The A query is resolved first and needs the AAAA answer, which is in
	// flight. The AAAA query finds the A answer in the cache.
	c.askBoth(t, "together."+suffix)
	step("A and AAAA", map[string]float64{"source=inflight": 1, "source=cache": 1}, 2)
}

// gate holds the reply for A until the query for AAAA arrives, and the reply for
// AAAA a moment longer.
type gate struct{ aaaa chan struct{} }

func newGate() gate { return gate{make(chan struct{})} }

func (g gate) pass(t testing.TB, qtype uint16) {
	if qtype == dns.TypeAAAA {
		close(g.aaaa)
		hold(t, 200*time.Millisecond)
		return
	}
	select {
	case <-g.aaaa:
	case <-t.Context().Done():
	}
	hold(t, 100*time.Millisecond) // the client's query for AAAA has arrived by then
}
