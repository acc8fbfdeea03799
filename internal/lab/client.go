package lab

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// QueryTimeout is the timeout of one query. It is longer than that of any stub
// resolver, so a query that runs into it is lost.
const QueryTimeout = 20 * time.Second

// Query returns a query for name with RD set.
func Query(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
}

// Ask sends q once from inside the namespace over network, "udp" or "tcp".
func (n *Netns) Ask(t testing.TB, network, server string, q *dns.Msg) *dns.Msg {
	t.Helper()
	r, err := n.TryAsk(t, network, server, q)
	if err != nil {
		t.Fatalf("from %s to %s over %s, %s: %v", n.Name, server, network, q.Question[0].String(), err)
	}
	return r
}

// TryAsk is Ask for a query that may get no reply.
func (n *Netns) TryAsk(t testing.TB, network, server string, q *dns.Msg) (*dns.Msg, error) {
	t.Helper()
	c, err := n.DialContext(t.Context(), network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return AskOn(c, q)
}

// AskOn sends q on an open connection and waits for the reply.
func AskOn(c net.Conn, q *dns.Msg) (*dns.Msg, error) {
	if err := c.SetDeadline(time.Now().Add(QueryTimeout)); err != nil {
		return nil, err
	}
	dc := &dns.Conn{Conn: c, UDPSize: dns.MaxMsgSize - 1}
	if err := dc.WriteMsg(q); err != nil {
		return nil, err
	}
	for {
		r, err := dc.ReadMsg()
		if err != nil || r.Id == q.Id {
			return r, err
		}
	}
}

// Data returns the RDATA of the answer's records of the given type, in order.
func Data(r *dns.Msg, rrtype uint16) []string {
	var list []string
	for _, rr := range r.Answer {
		if rr.Header().Rrtype == rrtype {
			list = append(list, rr.String()[len(rr.Header().String()):])
		}
	}
	return list
}
