package normalize

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/miekg/dns"
)

// TestObserve: with mode observe every reply, miss and hit, equals the reply
// without normalising, and the counters show what the directive would have done.
func TestObserve(t *testing.T) {
	t.Parallel()
	const family = "nodens_normalize_total"
	c, _ := nodeWith(t, buildRace, judgementScript().answer, "normalize {\n mode observe\n}")
	before := c.node.Scrape(t, metrics)
	for i, j := range judgements {
		for _, which := range []string{"miss", "hit", "hit with OPT"} {
			var opts []func(*dns.Msg)
			switch {
			case j.do:
				opts = append(opts, withDO)
			case which == "hit with OPT":
				opts = append(opts, withOPT)
			}
			what := fmt.Sprintf("%s, %s", j, which)
			observed := c.ask(t, onAddr, j.name(i), j.qtype, opts...)
			off := c.ask(t, offAddr, j.name(i), j.qtype, opts...)
			sameReply(t, what, observed, off)
			want := make(map[string]float64)
			if j.result != "" {
				want[j.series()] = 1
			}
			before = c.waitForChange(t, what, before, family, want)
		}
	}
}

// sameReply compares two replies byte by byte, except the ID and the age of their
// records. TTLs of the script are 30 s and 60 s; the directive would set at most
// 5 s.
func sameReply(t *testing.T, what string, observed, off *dns.Msg) {
	t.Helper()
	if a, b := ageless(t, observed), ageless(t, off); !bytes.Equal(a, b) {
		t.Errorf("%s: observed\n%s\nwithout normalising\n%s", what, observed, off)
	}
	for _, rr := range append(observed.Answer, observed.Ns...) {
		if ttl := rr.Header().Ttl; ttl < 10 {
			t.Errorf("%s: TTL %d", what, ttl)
		}
	}
}

func ageless(t *testing.T, m *dns.Msg) []byte {
	t.Helper()
	m = m.Copy()
	m.Id = 0
	for _, rr := range append(m.Answer, m.Ns...) {
		rr.Header().Ttl = 0
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDefaultChangesReplies is the control of TestObserve: by default the same
// questions show what is rewritten and repaired, and nothing else changes.
func TestDefaultChangesReplies(t *testing.T) {
	t.Parallel()
	c, _ := nodeWith(t, buildRace, judgementScript().answer, "")
	for i, j := range judgements {
		opt := withOPT
		if j.do {
			opt = withDO
		}
		for _, which := range []string{"miss", "hit"} {
			what := fmt.Sprintf("%s, %s", j, which)
			got := c.ask(t, onAddr, j.name(i), j.qtype, opt)
			off := c.ask(t, offAddr, j.name(i), j.qtype, opt)
			switch j.result {
			case "rewritten":
				checkSynthesized(t, what, got, dns.RcodeNameError)
			case "repaired":
				checkSynthesized(t, what, got, dns.RcodeSuccess)
			case "sibling_unknown":
				if got.Rcode != dns.RcodeSuccess {
					t.Errorf("%s: %s", what, dns.RcodeToString[got.Rcode])
				}
			default:
				if got.Rcode != off.Rcode || !bytes.Equal(ageless(t, got), ageless(t, off)) {
					t.Errorf("%s: got\n%s\nwithout normalising\n%s", what, got, off)
				}
			}
		}
	}
}

// checkSynthesized: the reply has no answer and no AA, and has Extended DNS Error
// 29, which marks a synthesized answer.
func checkSynthesized(t *testing.T, what string, r *dns.Msg, rcode int) {
	t.Helper()
	if r.Rcode != rcode || len(r.Answer) > 0 || r.Authoritative || r.AuthenticatedData || !r.RecursionAvailable {
		t.Errorf("%s: want %s without an answer, AA or AD:\n%s", what, dns.RcodeToString[rcode], r)
	}
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok && e.InfoCode == dns.ExtendedErrorCodeSynthesized && e.ExtraText != "" {
				return
			}
		}
	}
	t.Errorf("%s: without Extended DNS Error 29:\n%s", what, r)
}
