package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestStale(t *testing.T) {
	const name = "www.example."
	msgs := map[string]*dns.Msg{
		"data":   success(t, name+" 60 IN A 192.0.2.1"),
		"denial": nxdomain(t, name, soa60of300),
	}
	tests := []struct {
		name   string
		policy Policy
		age    time.Duration
		want   Hit // unless State is Miss, Entry is the one of the Put
	}{
		{"off", Policy{}, time.Minute, Hit{}},
		{"fresh", Policy{StaleFor: time.Hour}, time.Minute - 1, Hit{State: Fresh, Age: 59}},
		{"immediate", Policy{StaleFor: time.Hour}, time.Minute, Hit{State: Stale, Age: StaleAge, Refresh: true}},
		{"verify", Policy{StaleFor: time.Hour, StaleVerify: true}, time.Minute, Hit{State: Stale, Age: StaleAge, Verify: true}},
		{"keepttl does not make it fresh", Policy{StaleFor: time.Hour, KeepTTL: true}, time.Minute, Hit{State: Stale, Age: StaleAge, Refresh: true}},
		{"at the end", Policy{StaleFor: time.Hour}, time.Hour + time.Minute - 1, Hit{State: Stale, Age: StaleAge, Refresh: true}},
		{"past the end", Policy{StaleFor: time.Hour}, time.Hour + time.Minute, Hit{}},
		{"negative", Policy{StaleFor: -time.Hour}, time.Minute - 1, Hit{State: Fresh, Age: 59}},
	}
	for _, tt := range tests {
		for kind, m := range msgs {
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				f := newFixture(t, tt.policy)
				e := f.put(t, keyOf(m), m)
				f.clock.advance(tt.age)
				if tt.want.State == Miss {
					e = nil
				}
				h := f.get(keyOf(m))
				if !same(h.Entry, e) {
					t.Errorf("got %+v, want %+v", h.Entry, e)
				}
				if h.Entry = nil; h != tt.want {
					t.Errorf("got %+v, want %+v", h, tt.want)
				}
			})
		}
	}
}

func TestStaleTTL(t *testing.T) {
	f := newFixture(t, Policy{StaleFor: time.Hour})
	m := reply(t, "www.example.", dns.TypeA, dns.RcodeSuccess,
		[]string{"www.example. 60 IN A 192.0.2.1"}, []string{"example. 3600 IN NS ns.example."}, nil)
	f.put(t, keyOf(m), m)
	f.clock.advance(time.Minute)
	h := f.get(keyOf(m))
	if got := ttlsOf(unpackAged(t, h.Entry, h.Age)); !slices.Equal(got, []uint32{30, 30}) {
		t.Errorf("TTLs = %d", got)
	}
}

func TestStaleRefreshIsGrantedOnce(t *testing.T) {
	f := newFixture(t, Policy{StaleFor: time.Hour})
	m := success(t, "www.example. 60 IN A 192.0.2.1")
	f.put(t, keyOf(m), m)
	f.clock.advance(time.Minute)

	if !f.get(keyOf(m)).Refresh || f.get(keyOf(m)).Refresh {
		t.Error("not granted to exactly the first")
	}
	f.RefreshDone(keyOf(m))
	if !f.get(keyOf(m)).Refresh || f.get(keyOf(m)).Refresh {
		t.Error("not granted to exactly the first after RefreshDone")
	}
	fresh := f.put(t, keyOf(m), m)
	if h := f.get(keyOf(m)); h.State != Fresh || !same(h.Entry, fresh) || h.Refresh {
		t.Errorf("after Put: %+v", h)
	}
}

// During an outage, stale answers are served and upstream gets no more queries
// than the failure's back-off allows. The first new answer replaces the stale one.
func TestStaleDuringOutage(t *testing.T) {
	const name = "www.example."
	for _, verify := range []bool{false, true} {
		f := newFixture(t, Policy{StaleFor: time.Hour, StaleVerify: verify, ServFail: 5 * time.Second})
		m := success(t, name+" 60 IN A 192.0.2.1")
		key := keyOf(m)
		f.put(t, key, m)
		f.clock.advance(time.Minute)
		queries := 0
		for range 600 { // a minute
			h := f.get(key)
			if h.State != Stale {
				t.Fatalf("verify=%v: got %+v", verify, h)
			}
			if h.Verify || h.Refresh {
				queries++
				f.putFailure(t, key, servfail(name))
				f.RefreshDone(key)
			}
			f.clock.advance(100 * time.Millisecond)
		}
		if queries != 14 { // at 0, 1, 3, 7 s and every 5 s from 12 s on
			t.Errorf("verify=%v: %d upstream queries", verify, queries)
		}
		f.put(t, key, nxdomain(t, name, soa60of300))
		if h := f.get(key); h.State != Fresh || h.Entry.Rcode() != dns.RcodeNameError {
			t.Errorf("verify=%v: recovered to %+v", verify, h)
		}
	}
}

func TestPrefetch(t *testing.T) {
	policy := func(amount, percent int, gap time.Duration) Policy {
		return Policy{Prefetch: Prefetch{Amount: amount, Percentage: percent, Duration: gap}}
	}
	tests := []struct {
		name   string
		policy Policy
		ttl    string
		gets   []time.Duration // since the answer was put
		want   int             // which of gets must refresh, from 1; 0: none
	}{
		{"off", Policy{}, "100", []time.Duration{99 * time.Second}, 0},
		{"popular, too early", policy(1, 10, 0), "100", []time.Duration{89 * time.Second}, 0},
		{"popular, at 10 %", policy(1, 10, 0), "100", []time.Duration{90 * time.Second}, 1},
		{"default percentage", policy(1, 0, 0), "100", []time.Duration{89 * time.Second, 90 * time.Second}, 2},
		{"only one of many", policy(1, 50, 0), "100", []time.Duration{50 * time.Second, 51 * time.Second, 52 * time.Second}, 1},
		{"too few", policy(3, 50, 0), "100", []time.Duration{50 * time.Second, 51 * time.Second}, 0},
		{"just enough", policy(3, 50, 0), "100", []time.Duration{10 * time.Second, 51 * time.Second, 52 * time.Second}, 3},
		{"a gap", policy(2, 50, 10*time.Second), "100", []time.Duration{50 * time.Second, 61 * time.Second, 71 * time.Second}, 3},
		{"default gap of a minute", policy(2, 50, 0), "200", []time.Duration{90 * time.Second, 151 * time.Second, 160 * time.Second}, 3},
		{"a second is left", policy(1, 1, 0), "10", []time.Duration{8 * time.Second, 9 * time.Second}, 2},
		{"more than all of it", policy(1, 1000, 0), "10", []time.Duration{0}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, tt.policy)
			m := success(t, "www.example. "+tt.ttl+" IN A 192.0.2.1")
			f.put(t, keyOf(m), m)
			start, got := f.clock.now, 0
			for i, at := range tt.gets {
				h := f.Get(keyOf(m), start.Add(at))
				if h.State != Fresh {
					t.Fatalf("at %v: %+v", at, h)
				}
				if h.Refresh && got == 0 {
					got = i + 1
				} else if h.Refresh {
					t.Errorf("a second refresh at %v", at)
				}
			}
			if got != tt.want {
				t.Errorf("refreshed by lookup %d, want %d", got, tt.want)
			}
		})
	}
}

func TestPrefetchWaitsForTheEndOfAFailure(t *testing.T) {
	f := newFixture(t, Policy{ServFail: 5 * time.Second, Prefetch: Prefetch{Amount: 1, Percentage: 100}})
	m := success(t, "www.example. 100 IN A 192.0.2.1")
	f.put(t, keyOf(m), m)
	if !f.get(keyOf(m)).Refresh {
		t.Fatal("not due")
	}
	f.putFailure(t, keyOf(m), servfail("www.example."))
	f.RefreshDone(keyOf(m))
	if h := f.get(keyOf(m)); h.State != Fresh || h.Refresh {
		t.Errorf("retried at once: %+v", h)
	}
	f.clock.advance(time.Second)
	if !f.get(keyOf(m)).Refresh {
		t.Error("not retried after the failure's end")
	}
}

func TestPopularityOutlivesARefresh(t *testing.T) {
	f := newFixture(t, Policy{Prefetch: Prefetch{Amount: 3, Percentage: 50}})
	m := success(t, "www.example. 100 IN A 192.0.2.1")
	f.put(t, keyOf(m), m)
	for range 3 {
		f.get(keyOf(m))
	}
	f.put(t, keyOf(m), m)
	f.clock.advance(50 * time.Second)
	if !f.get(keyOf(m)).Refresh {
		t.Error("a popular name has to become popular again")
	}
}
