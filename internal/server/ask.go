package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// Ask sends addr a query over UDP until it gets a reply or ctx is done. It repeats the
// query after 250 ms, and then after twice as long each time, up to 4 s: a process without
// enough CPU replies late. The query is for version.bind in class CH. A Server refuses it with
// any zones. Any reply proves that the address is reachable.
func Ask(ctx context.Context, addr netip.AddrPort) error {
	var last error
	for wait := 250 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 4*time.Second) {
		if last = askOnce(ctx, addr, wait); last == nil {
			return nil
		}
		if errors.Is(last, net.ErrClosed) {
			break
		}
	}
	return errors.Join(last, ctx.Err())
}

func askOnce(ctx context.Context, addr netip.AddrPort, wait time.Duration) error {
	m := new(dns.Msg)
	m.SetQuestion("version.bind.", dns.TypeTXT)
	m.Question[0].Qclass = dns.ClassCHAOS
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	_, _, err := new(dns.Client).ExchangeContext(ctx, m, addr.String())
	if err != nil {
		<-ctx.Done() // do not retry in a tight loop
	}
	return err
}
