package server

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/server/action"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// TestDepartedClient: the queries of a TCP client that disconnects are cancelled, also
// those that an action waits for.
func TestDepartedClient(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, actions := range map[string]*Actions{"plain": nil, "actions": {LoadBalance: new(action.LoadBalance)}} {
		t.Run(name, func(t *testing.T) {
			pool, err := upstream.NewPool(upstream.PoolConfig{
				Endpoints: []upstream.Endpoint{{Addr: netip.MustParseAddrPort(silent.LocalAddr().String())}},
				Timeout:   time.Hour, AttemptTimeout: time.Hour, NoHedge: true, // only a cancellation ends it
			})
			if err != nil {
				t.Fatal(err)
			}
			z := &Zone{Name: ".", Cache: newCache(t), Sources: []NamedSource{{Name: "forward", Source: pool}}, Actions: actions}
			ts := newTestServer(t, Config{Timeout: time.Hour}, z)
			c := dialTCP(t, ts)
			frame := pack(t, query("www.example.org.", dns.TypeA))
			if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...)); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the query", func() bool { return ts.inflight.waiters() == 1 })
			_ = c.SetLinger(0) // a reset: the client does not wait for replies
			_ = c.Close()
			waitFor(t, "its cancellation", func() bool { return ts.inflight.waiters() == 0 && ts.misses.active.Load() == 0 })
		})
	}
}

// waitFor polls cond.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no sign of %s", what)
		}
	}
}
