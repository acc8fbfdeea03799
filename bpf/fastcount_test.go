package bpf

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
)

// TestFastpathCountsAnswers: an answered query raises the counts of answers, hits and its
// client, another one only that of the reason.
func TestFastpathCountsAnswers(t *testing.T) {
	for _, c := range []struct {
		what   string
		broken asm.BuiltinFunc // the helper that fails
		body   int
		code   uint32
		reason fastPassReason
	}{
		{"answered", asm.FnUnspec, 30, tcRedirect, fastPassReasonFAST_ANSWERED},
		{"too large", asm.FnUnspec, 600, tcNext, fastPassReasonPASS_TOO_LARGE},
		{"no memory", asm.FnSkbChangeTail, 30, tcNext, fastPassReasonPASS_FAILED},
		{"no write", asm.FnSkbStoreBytes, 30, tcShot, fastPassReasonPASS_LOST},
		{"no checksum", asm.FnL4CsumReplace, 30, tcShot, fastPassReasonPASS_LOST},
	} {
		for _, to := range []string{"169.254.20.10:53", "[fd00::10]:53"} {
			t.Run(c.what+"/"+to, func(t *testing.T) {
				q := newQuestion(t, c.broken, to, Answer{Body: make([]byte, c.body), Refresh: time.Hour})
				if code := q.ask(t, false); code != c.code {
					t.Errorf("result %d, want %d", code, c.code)
				}
				want := uint64(0)
				if c.reason == fastPassReasonFAST_ANSWERED {
					want = 1
				} else if n := q.passed(t, c.reason); n != 1 {
					t.Errorf("the reason is counted %d times", n)
				}
				n, err := q.f.Counts(0)
				check(t, err)
				hits, asked := q.f.Hits(q.key), uint32(0)
				q.f.asked = func(_ int, _ netip.Addr, n uint32) { asked += n }
				q.f.LeaseTable.Report()
				if n.Lookups[0] != want || uint64(hits) != 8*want || uint64(asked) != 8*want {
					t.Errorf("%d answers, %d hits and %d of the client counted, want %d sampled", n.Lookups[0], hits, asked, want)
				}
			})
		}
	}
}

// TestFastpathRefreshesOnce: when an answer is due for a refresh, one of the queries that it
// answers goes to the daemon. One for which it is too large does so anyway.
func TestFastpathRefreshesOnce(t *testing.T) {
	q := newQuestion(t, asm.FnUnspec, "169.254.20.10:53", Answer{Body: make([]byte, 600), Refresh: -time.Second})
	for i, c := range []struct {
		opt  bool
		code uint32
	}{{false, tcNext}, {true, tcNext}, {true, tcRedirect}, {false, tcNext}, {true, tcRedirect}} {
		if code := q.ask(t, c.opt); code != c.code {
			t.Errorf("query %d: result %d, want %d", i, code, c.code)
		}
	}
	large, refresh := q.passed(t, fastPassReasonPASS_TOO_LARGE), q.passed(t, fastPassReasonPASS_REFRESH)
	if large != 2 || refresh != 1 {
		t.Errorf("%d queries passed as too large and %d as refresh, want 2 and 1", large, refresh)
	}
}

// question is one that the program has the answer to.
type question struct {
	f      *Fastpath
	key    []byte
	client netip.Addr
	to     netip.AddrPort
}

func newQuestion(t *testing.T, broken asm.BuiltinFunc, to string, a Answer) *question {
	t.Helper()
	spec, err := loadFast()
	check(t, err)
	code := spec.Programs[fastProgFastpath].Instructions
	for i := range code {
		if code[i].IsBuiltinCall() && code[i].Constant == int64(broken) {
			code[i] = asm.Mov.Imm(asm.R0, -1).WithMetadata(code[i].Metadata)
		}
	}
	q := &question{f: openTestSpec(t, 16, spec), key: []byte("\x01q\x00\x00\x10\x00\x01\x00"), to: ap(to)}
	q.client = testClients[boolIndex(q.to.Addr().Is6())]
	a.Generation, a.Listener = q.f.Listen([]netip.AddrPort{q.to}), q.to
	a.Question, a.Left, a.KeepTTL = q.key, time.Hour, true
	if !q.f.Put(&a) {
		t.Fatal("the table does not take the answer")
	}
	q.f.Lease(1, q.client, time.Hour)
	return q
}

// ask runs a query that is sampled. A packet that is passed must be unchanged.
func (q *question) ask(t *testing.T, opt bool) uint32 {
	t.Helper()
	msg := append([]byte{1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, q.key[:len(q.key)-1]...)
	if opt {
		msg[11] = 1
		msg = append(msg, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0)
	}
	in := frame(msg, q.client, q.to, 4000)
	code, out := runPacket(t, q.f.objs.Fastpath, in, make([]byte, 2048))
	if code == tcNext && !bytes.Equal(in, out) {
		t.Error("the packet is passed, but changed")
	}
	return code
}

// passed returns how many queries were not answered for a reason.
func (q *question) passed(t *testing.T, reason fastPassReason) uint64 {
	t.Helper()
	n, err := q.f.Passed()
	check(t, err)
	return n[reason-1]
}
