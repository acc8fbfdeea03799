package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// lateSource reports an error for each question, and leaves its answer to the test.
type lateSource chan lateQuestion

type lateQuestion struct {
	m    *dns.Msg
	done func(*dns.Msg, error)
}

func (s lateSource) Start(m *dns.Msg, _ time.Time, done func(*dns.Msg, error)) func() {
	s <- lateQuestion{m, done}
	done(nil, errors.New("no reply in time"))
	return nil
}

func (s lateSource) Exchange(context.Context, *dns.Msg) (*dns.Msg, error) {
	return nil, errors.New("not called")
}

// TestLateAnswerIsCached: an answer that comes after the client got SERVFAIL replaces
// the stored failure.
func TestLateAnswerIsCached(t *testing.T) {
	src := make(lateSource, 10)
	ts := newTestServer(t, Config{}, &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: src}}})
	if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); r.Rcode != dns.RcodeServerFailure {
		t.Fatal(r)
	}
	asked := <-src
	late, err := example(t)(t.Context(), asked.m)
	if err != nil {
		t.Fatal(err)
	}
	asked.done(late, nil)
	if r := ts.ask(t, "udp", query("www.example.org.", dns.TypeA)); len(r.Answer) == 0 || len(src) > 0 {
		t.Errorf("%d more questions: %v", len(src), r)
	}
	if n := ts.misses.active.Load(); n != 0 {
		t.Errorf("%d slots in use", n)
	}
}
