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

// TestDepartedClients: when all TCP clients that wait for an answer have disconnected,
// its query is cancelled, also one that an action waits for. They leave no slot taken.
func TestDepartedClients(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	normalise, err := NewNormalise(NormaliseConfig{Suffixes: []string{"example.org."}, Repair: true, Timeout: time.Hour, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for name, z := range map[string]*Zone{"plain": {}, "actions": {Actions: &Actions{LoadBalance: new(action.LoadBalance)}}, "normalize": {Normalise: normalise}} {
		t.Run(name, func(t *testing.T) {
			pool, err := upstream.NewPool(upstream.PoolConfig{
				Endpoints: []upstream.Endpoint{{Addr: netip.MustParseAddrPort(silent.LocalAddr().String())}},
				Timeout:   time.Hour, AttemptTimeout: time.Hour, NoHedge: true, // only a cancellation ends it
			})
			if err != nil {
				t.Fatal(err)
			}
			z.Name, z.Cache, z.Sources = ".", newCache(t), []NamedSource{{Name: "forward", Source: pool}}
			ts := newTestServer(t, Config{Timeout: time.Hour}, z)
			frame := pack(t, query("www.example.org.", dns.TypeA))
			var clients []*net.TCPConn
			for n := range 2 {
				c := dialTCP(t, ts)
				if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...)); err != nil {
					t.Fatal(err)
				}
				clients = append(clients, c)
				waitFor(t, "a query", func() bool { return ts.inflight.waiters() == n+1 })
			}
			for left, c := range clients {
				_ = c.SetLinger(0) // a reset: the client does not wait for replies
				_ = c.Close()
				waitFor(t, "a departure", func() bool { return ts.inflight.waiters() == len(clients)-1-left })
			}
			// The query for the other address type continues; no client has sent it.
			waitFor(t, "free slots", func() bool { return ts.misses.active.Load() == ts.misses.own.Load() })
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
