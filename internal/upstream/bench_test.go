package upstream

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// BenchmarkExchange measures exchanges with a server on loopback that sends an empty
// answer at once. It runs one or 64 exchanges at a time, with Exchange and with
// Start.
func BenchmarkExchange(b *testing.B) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	defer pc.Close()
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			buf[2] |= 0x80
			buf[3] |= 0x80
			_, _ = pc.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	p, err := NewPool(PoolConfig{Endpoints: []Endpoint{{Addr: pc.LocalAddr().(*net.UDPAddr).AddrPort()}}})
	if err != nil {
		b.Fatal(err)
	}
	ask := func(b *testing.B) {
		if _, err := p.Exchange(b.Context(), asking("example.org.", dns.TypeA)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ask(b)
		}
	})
	for _, inFlight := range []int64{1, 64} {
		b.Run(fmt.Sprintf("Start/%d", inFlight), func(b *testing.B) {
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			var next func(*dns.Msg, error)
			var wg sync.WaitGroup
			next = func(_ *dns.Msg, err error) {
				if err != nil {
					b.Error(err)
				}
				if left.Add(-1) < 0 {
					wg.Done()
					return
				}
				p.Start(asking("example.org.", dns.TypeA), time.Time{}, next)
			}
			for range inFlight {
				wg.Add(1)
				next(nil, nil)
			}
			wg.Wait()
		})
	}
	b.Run("64", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				ask(b)
			}
		})
	})
}
