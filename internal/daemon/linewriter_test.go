package daemon

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestLineWriter(t *testing.T) {
	var out bytes.Buffer
	l := newLog(&out, prometheus.NewRegistry())
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want string
	for i := range 100 {
		line := fmt.Sprintln("line", i)
		want += line
		fmt.Fprint(l, line)
	}
	if err := l.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("wrote %q", out.String())
	}
}

// TestLineWriterNeverWaits writes to a pipe without a reader.
func TestLineWriterNeverWaits(t *testing.T) {
	r, w := io.Pipe()
	l := newLog(w, prometheus.NewRegistry())
	if err := l.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range pendingLog + 10 {
		fmt.Fprintln(l, "x")
	}
	if n := testutil.ToFloat64(l.dropped); n < 9 || n > 10 {
		t.Errorf("%v lines dropped", n)
	}
	if err := l.stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.Close() // lets the pending writes fail at once
	if err := l.stop(t.Context()); err != nil {
		t.Error(err)
	}
	<-l.done
}
