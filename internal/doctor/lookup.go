package doctor

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/miekg/dns"
)

// Lookup prints the answer of server, host:port, to q: over UDP and, if it is truncated, over TCP.
func Lookup(ctx context.Context, w io.Writer, q *dns.Msg, server string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &dns.Client{Timeout: 5 * time.Second}
	r, _, err := client.ExchangeContext(ctx, q, server)
	if err == nil && r.Truncated {
		client.Net = "tcp"
		r, _, err = client.ExchangeContext(ctx, q, server)
	}
	if err != nil {
		return fmt.Errorf("lookup: %w", err)
	}
	for _, rr := range r.Answer {
		if _, err := fmt.Fprintln(w, rr); err != nil {
			return err
		}
	}
	if r.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("lookup: %s answers %s", server, dns.RcodeToString[r.Rcode])
	}
	return nil
}
