package normalize

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// BenchmarkHit compares a zone that normalises with one that does not, for the same
// cached answers, in alternating rounds: other load on the machine affects both. A
// positive answer and a negative answer outside the suffixes need no verdict. The
// last one does, and its verdict is cached. The times include the work of the client
// and the kernel.
func BenchmarkHit(b *testing.B) {
	names := script{"data": {data, data}, "empty": {nodataSOA, nodataSOA}}
	for _, c := range []struct{ what, name string }{
		{"positive", "data." + suffix},
		{"denial out of scope", "empty." + outside},
		{"verdict", "empty." + suffix},
	} {
		b.Run(c.what, func(b *testing.B) {
			cl, _ := nodeWith(b, buildPlain, names.answer, "")
			on, off := newAsker(b, cl, onAddr, c.name), newAsker(b, cl, offAddr, c.name)
			compare(b, on, off)
		})
	}
}

// compare lets both answer b.N questions in rounds and reports the median round
// of each and the median of their ratio.
func compare(b *testing.B, on, off *asker) {
	const round = 2000
	var ons, offs, ratios []float64
	b.ResetTimer()
	for done := 0; done < b.N; done += round {
		n := min(round, b.N-done)
		x, y := 0.0, 0.0
		if done/round%2 == 0 {
			x, y = on.ask(b, n), off.ask(b, n)
		} else {
			y, x = off.ask(b, n), on.ask(b, n)
		}
		ons, offs, ratios = append(ons, x), append(offs, y), append(ratios, x/y)
	}
	b.ReportMetric(median(ons), "ns/query-on")
	b.ReportMetric(median(offs), "ns/query-off")
	b.ReportMetric(median(ratios), "on/off")
	b.ReportMetric(0, "ns/op") // of a question to each: has no meaning
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// asker repeats one question.
type asker struct {
	conn net.Conn
	msg  []byte
	buf  [512]byte
}

// newAsker fills the cache: the answer, and the answers that its verdict depends
// on.
func newAsker(b *testing.B, c *cluster, addr, name string) *asker {
	b.Helper()
	c.ask(b, addr, name, dns.TypeA)
	msg, err := lab.Query(name, dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	return &asker{conn: c.pod.Dial(b, "udp", addr), msg: msg}
}

// window is the number of concurrent queries. The receive buffers hold more, so
// none is lost.
const window = 64

// ask sends n queries and returns the nanoseconds per reply.
func (a *asker) ask(b *testing.B, n int) float64 {
	if err := a.conn.SetDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for sent, got := 0, 0; got < n; {
		for sent < n && sent-got < window {
			binary.BigEndian.PutUint16(a.msg, uint16(sent))
			if _, err := a.conn.Write(a.msg); err != nil {
				b.Fatal(err)
			}
			sent++
		}
		if _, err := a.conn.Read(a.buf[:]); err != nil {
			b.Fatal(fmt.Errorf("after %d of %d replies: %w", got, n, err))
		}
		got++
	}
	return float64(time.Since(began)) / float64(n)
}
