package server

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestUnreadRepliesAreBounded: a client sends queries with replies of 60 kB and reads
// none. The replies that wait stay below the limit. When the client reads, it gets one
// for each query, though not all the records.
func TestUnreadRepliesAreBounded(t *testing.T) {
	const queries, limit = 100, 1 << 20
	release := make(chan struct{})
	ts := newTestServer(t, Config{TCP: TCPLimits{Unread: limit, Write: time.Minute}}, zone("example.org.", newCache(t), func(_ context.Context, m *dns.Msg) (*dns.Msg, error) {
		<-release
		return reply(t, m, withTXT(900)...), nil
	}))
	c := dialTCP(t, ts)
	defer c.Close()
	frame := pack(t, query("big.example.org.", dns.TypeTXT, withEDNS(1232, false)))
	frame = append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...)
	for range queries {
		if _, err := c.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "all queries", func() bool { return ts.inflight.waiters() == queries })
	close(release)
	waitFor(t, "a full buffer", func() bool { return ts.metrics.tcpUnread.Load() > 0 })
	if n := ts.tcpUnread.Load(); n > limit/unreadShare+queries*200 {
		t.Errorf("%d bytes of replies wait", n)
	}
	conn := &dns.Conn{Conn: c}
	got := make(map[int]int)
	for range queries {
		r, err := conn.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		if got[r.Rcode]++; r.Rcode == dns.RcodeServerFailure && len(r.IsEdns0().Option) == 0 {
			t.Errorf("no reason: %v", r)
		}
	}
	if got[dns.RcodeSuccess] < 4 || uint64(got[dns.RcodeServerFailure]) != ts.metrics.tcpUnread.Load() {
		t.Errorf("rcodes %v", got)
	}
	waitFor(t, "an empty buffer", func() bool { return ts.tcpUnread.Load() == 0 })
}
