package cache

import (
	"testing"
	"time"

	"github.com/miekg/dns"
)

func TestFailureBackOff(t *testing.T) {
	const name = "www.example."
	key := keyFor(name, dns.TypeA)
	tests := []struct {
		name     string
		servFail time.Duration
		idle     time.Duration // after the expiry of each failure
		want     []int         // seconds that each failure is cached
	}{
		{"default", 5 * time.Second, 0, []int{1, 2, 4, 5, 5}},
		{"shortest", time.Millisecond, 0, []int{1, 1}},
		{"at most 5 min", time.Hour, 0, []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}},
		{"failures within 5 min count together", 8 * time.Second, 5*time.Minute - 1, []int{1, 2, 4, 8}},
		{"failures further apart do not", 8 * time.Second, 5 * time.Minute, []int{1, 1, 1}},
		{"off", 0, 0, []int{0, 0}},
		{"negative", -1, 0, []int{0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, Policy{ServFail: tt.servFail})
			for i, want := range tt.want {
				e := f.putFailure(t, key, servfail(name))
				if want == 0 {
					if h := f.get(key); e == nil || h.State != Miss {
						t.Fatalf("failure %d: %+v", i, h)
					}
					continue
				}
				f.clock.advance(time.Duration(want)*time.Second - 1)
				if h := f.get(key); h.State != Failed || !same(h.Entry, e) || h.Entry.Rcode() != dns.RcodeServerFailure {
					t.Fatalf("failure %d: before its expiry %+v", i, h)
				}
				f.clock.advance(1)
				if h := f.get(key); h.State != Miss {
					t.Fatalf("failure %d: at its expiry %+v", i, h)
				}
				f.clock.advance(tt.idle)
			}
		})
	}
}

func TestFailureAndData(t *testing.T) {
	const name = "www.example."
	key := keyFor(name, dns.TypeA)
	f := newFixture(t, Policy{ServFail: 5 * time.Second})
	fail := func() { t.Helper(); f.putFailure(t, key, servfail(name)) }

	fail()
	data := f.put(t, key, success(t, name+" 1 IN A 192.0.2.1"))
	fail()
	if h := f.get(key); !same(h.Entry, data) || h.State != Fresh {
		t.Errorf("a failure masks data: %+v", h)
	}
	denied := f.put(t, key, nxdomain(t, name, soa60of300))
	if h := f.get(key); !same(h.Entry, denied) || h.State != Fresh {
		t.Errorf("a failure masks a denial: %+v", h)
	}
	if st := f.Stats(); st.Failure.Entries != 0 {
		t.Errorf("the failure remains after a success: %+v", st)
	}
	fail()
	f.clock.advance(time.Minute)
	if h := f.get(key); h.State != Miss {
		t.Errorf("the back-off outlived a success: %+v", h)
	}
}

// A query and a refresh of one key can fail at the same time.
func TestConcurrentFailuresCountOnce(t *testing.T) {
	const name = "www.example."
	key := keyFor(name, dns.TypeA)
	f := newFixture(t, Policy{ServFail: time.Minute})
	for range 5 {
		f.putFailure(t, key, servfail(name))
	}
	f.clock.advance(time.Second)
	if h := f.get(key); h.State != Miss {
		t.Errorf("backed off: %+v", h)
	}
}

func TestFailureAfterReload(t *testing.T) {
	f := newFixture(t, Policy{ServFail: time.Minute})
	m := servfail("www.example.")
	f.putFailure(t, keyOf(m), m)
	off := f.store.Cache("zone", Policy{})
	if h := off.Get(keyOf(m), f.clock.now); h.State != Miss {
		t.Errorf("failure found although caching of failures is off: %+v", h)
	}
}

// A failure of one key does not affect another key.
func TestFailureSeparation(t *testing.T) {
	f := newFixture(t, Policy{ServFail: time.Minute})
	m := servfail("www.example.")
	key := AppendKey(nil, wireName("www.example."), dns.TypeA, dns.ClassINET, false, true, false)
	f.putFailure(t, key, m)
	if h := f.get(key); h.State != Failed {
		t.Errorf("CD: %+v", h)
	}
	if h := f.get(keyOf(m)); h.State != Miss {
		t.Errorf("a failure with CD answers a query without CD: %+v", h)
	}
	if e := f.putFailure(t, keyFor("other.example.", dns.TypeA), m); e == nil {
		t.Error("no entry to reply from")
	}
	if h := f.get(keyFor("other.example.", dns.TypeA)); h.State != Miss {
		t.Errorf("stored for another question: %+v", h)
	}
}

// TestForgetFailures: failures stored before are neither answered from nor part
// of the back-off. Later ones and data are not touched.
func TestForgetFailures(t *testing.T) {
	const name, other = "www.example.", "other.example."
	key := keyFor(name, dns.TypeA)
	f := newFixture(t, Policy{ServFail: time.Minute})
	for range 3 {
		f.putFailure(t, key, servfail(name))
		f.clock.advance(10 * time.Second)
	}
	f.putFailure(t, key, servfail(name))
	f.put(t, keyFor(other, dns.TypeA), success(t, other+" 60 IN A 192.0.2.1"))
	f.store.ForgetFailures()
	if h := f.get(key); h.State != Miss {
		t.Errorf("forgotten failure: %+v", h)
	}
	if h := f.get(keyFor(other, dns.TypeA)); h.State != Fresh {
		t.Errorf("data: %+v", h)
	}
	f.clock.advance(time.Millisecond)
	f.putFailure(t, key, servfail(name))
	if h := f.get(key); h.State != Failed {
		t.Errorf("failure afterwards: %+v", h)
	}
	f.clock.advance(time.Second)
	if h := f.get(key); h.State != Miss {
		t.Errorf("after 1 s: %+v", h)
	}
}
