package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// outcome is the result of a query.
type outcome struct {
	reply *dns.Msg // nil: no reply
	err   error    // why there is no reply
}

func (o outcome) answered() bool { return o.reply != nil }

// why describes the outcome in one or two words.
func (o outcome) why() string {
	var timeout net.Error
	switch {
	case o.answered():
		return dns.RcodeToString[o.reply.Rcode]
	case errors.Is(o.err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(o.err, syscall.ENETUNREACH), errors.Is(o.err, syscall.EHOSTUNREACH):
		return "no route"
	case errors.Is(o.err, os.ErrDeadlineExceeded), errors.As(o.err, &timeout) && timeout.Timeout():
		return "no reply"
	}
	return o.err.Error()
}

// client queries servers, with two attempts.
type client struct{ timeout time.Duration }

// query sends q, and once more if there is no reply. Any reply counts, whatever
// its response code.
func (c client) query(ctx context.Context, from place, network string, server netip.AddrPort, q *dns.Msg) outcome {
	var o outcome
	for range 2 {
		if o = exchange(ctx, from, network, server, q, c.timeout); o.answered() || ctx.Err() != nil {
			return o
		}
	}
	return o
}

// exchange sends q once.
func exchange(ctx context.Context, from place, network string, server netip.AddrPort, q *dns.Msg, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var c net.Conn
	err := from.do(func() (err error) {
		// An address needs no resolver, and without Happy Eyeballs the dial
		// stays on this thread and so in the namespace.
		d := net.Dialer{FallbackDelay: -1}
		c, err = d.DialContext(ctx, network, server.String())
		return err
	})
	if err != nil {
		return outcome{err: err}
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return outcome{err: err}
	}
	dc := &dns.Conn{Conn: c, UDPSize: dns.MaxMsgSize - 1}
	if err := dc.WriteMsg(q); err != nil {
		return outcome{err: err}
	}
	for {
		r, err := dc.ReadMsg()
		if r != nil && r.Id == q.Id {
			return outcome{reply: r}
		}
		if err != nil {
			return outcome{err: err}
		}
	}
}

func question(name string, qtype uint16) *dns.Msg {
	return new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
}

// chaos returns a query for a TXT record in class CH (RFC 4892).
func chaos(name string) *dns.Msg {
	q := question(name, dns.TypeTXT)
	q.Question[0].Qclass = dns.ClassCHAOS
	q.RecursionDesired = false
	return q
}

// unnamed stands for a server that answers neither id.server nor version.bind.
const unnamed = "a server that does not identify itself"

// isNodens reports whether who names a nodens.
func isNodens(who string) bool { return strings.HasPrefix(who, "nodens ") }

// identify returns the name of a server, asked over UDP, or "" if it does not answer at all.
func (c client) identify(ctx context.Context, from place, server netip.AddrPort) (who string, o outcome) {
	o = c.query(ctx, from, "udp", server, chaos("id.server."))
	if !o.answered() {
		return "", o
	}
	if s := txt(o.reply); isNodens(s) {
		return s, o
	}
	if v := txt(c.query(ctx, from, "udp", server, chaos("version.bind.")).reply); v != "" {
		return v, o
	}
	return unnamed, o
}

// accepts reports whether the server accepts TCP connections.
func (c client) accepts(ctx context.Context, from place, server netip.AddrPort) bool {
	o := exchange(ctx, from, "tcp", server, question(".", dns.TypeNS), c.timeout)
	return o.answered() || !isDialError(o.err)
}

// txt returns the text of a TXT reply, or "".
func txt(r *dns.Msg) string {
	if r == nil {
		return ""
	}
	for _, rr := range r.Answer {
		if t, ok := rr.(*dns.TXT); ok {
			return strings.Join(t.Txt, "")
		}
	}
	return ""
}
