package server

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestErrorSummary: the first failure of a zone is logged at once, and then a
// summary with an example in each period with failures. After a quiet period, it
// begins anew.
func TestErrorSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(lines)
		e := NewErrorLog(slog.New(slog.NewTextHandler(out, nil)), nil)
		fail := func(zone string, from, to int) {
			for i := from; i < to; i++ {
				e.write(zone, query(fmt.Sprintf("n%d.%s", i, zone), dns.TypeA), fmt.Errorf("silence %d", i))
			}
		}
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			got := out.take()
			for i, line := range got {
				_, line, _ = strings.Cut(line, "level=")
				if got[i] = strings.TrimSpace(line); i >= len(want) || got[i] != want[i] {
					t.Errorf("%s: %q", when, got[i])
				}
			}
			if len(got) != len(want) {
				t.Errorf("%s: %d lines, want %d", when, len(got), len(want))
			}
		}
		const line = `ERROR msg="no answer" `
		fail("a.", 0, 1000)
		fail("b.", 0, 1)
		expect("at once", line+`zone=a. name=n0.a. type=A error="silence 0"`, line+`zone=b. name=n0.b. type=A error="silence 0"`)
		time.Sleep(summaryPeriod)
		expect("after a period", line+`count=999 period=10s zone=a. name=n1.a. type=A error="silence 1"`)
		fail("a.", 7, 9)
		expect("in the second period")
		time.Sleep(summaryPeriod)
		expect("after the second period", line+`count=2 period=10s zone=a. name=n7.a. type=A error="silence 7"`)
		time.Sleep(3 * summaryPeriod)
		expect("while all is quiet")
		fail("a.", 5, 6)
		expect("after a quiet period", line+`zone=a. name=n5.a. type=A error="silence 5"`)
		time.Sleep(2 * summaryPeriod) // ends the timers
	})
}

// TestShowFirst wants the first error of a period at once, and the summary at
// the end of the period.
func TestShowFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := new(lines)
		const period = time.Minute
		rules := []Consolidation{{Period: period, Pattern: regexp.MustCompile(`^odd`), Level: slog.LevelWarn, ShowFirst: true}}
		e := NewErrorLog(slog.New(slog.NewTextHandler(out, nil)), rules)
		for range 3 {
			e.write("example.org.", query("a.example.org.", dns.TypeA), errors.New("odd"))
		}
		if got := out.take(); len(got) != 1 || !strings.Contains(got[0], "level=WARN msg=\"no answer\"") {
			t.Errorf("before the period's end: %q", got)
		}
		time.Sleep(period)
		synctest.Wait()
		if got := out.take(); len(got) != 1 || !strings.Contains(got[0], "errors consolidated") || !strings.Contains(got[0], "count=3") {
			t.Errorf("at the period's end: %q", got)
		}
	})
}
