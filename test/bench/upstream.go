package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// ttl of all answers, in seconds: nothing expires during a measurement.
const ttl = 3600

// upstream answers and counts the queries that the servers forward.
type upstream struct {
	addr    netip.AddrPort
	asked   atomic.Int64 // queries for the names of the bench, without health checks
	servers []*dns.Server
}

// startUpstream starts the upstream of the bench.
func startUpstream(ip netip.Addr) (*upstream, error) {
	u := new(upstream)
	return u, u.serve(ip, u)
}

// serve serves h on a free port of ip, over UDP and TCP.
func (u *upstream) serve(ip netip.Addr, h dns.Handler) error {
	pc, l, err := listenBoth(ip)
	if err != nil {
		return err
	}
	u.addr = l.Addr().(*net.TCPAddr).AddrPort()
	u.servers = []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}}
	for _, s := range u.servers {
		started := make(chan error, 1)
		s.NotifyStartedFunc = func() { started <- nil }
		go func() { started <- s.ActivateAndServe() }()
		if err := <-started; err != nil {
			return errors.Join(err, u.stop(context.Background()))
		}
	}
	return nil
}

func (u *upstream) stop(ctx context.Context) error {
	var errs []error
	for _, s := range u.servers {
		errs = append(errs, s.ShutdownContext(ctx))
	}
	return errors.Join(errs...)
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = true
	name := strings.ToLower(q.Question[0].Name)
	positive, negative := strings.HasSuffix(name, positiveName[1+numDigits:]), strings.HasSuffix(name, "."+namespace)
	if positive || negative {
		u.asked.Add(1)
	}
	if positive && q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: header(q.Question[0].Name, dns.TypeA), A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(m)
		return
	}
	if !positive && name != namespace {
		m.Rcode = dns.RcodeNameError
	}
	m.Ns = []dns.RR{&dns.SOA{Hdr: header(zoneOf(name, negative), dns.TypeSOA), Ns: "ns.example.", Mbox: "mail.example.",
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl}}
	_ = w.WriteMsg(m)
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// zoneOf is the owner of the SOA record of a negative answer.
func zoneOf(name string, negative bool) string {
	if negative {
		return "cluster.local."
	}
	if i, end := dns.NextLabel(name, 0); !end {
		return name[i:]
	}
	return "."
}

// freePort finds a port of ip that neither UDP nor TCP uses.
func freePort(ip netip.Addr) (netip.AddrPort, error) {
	pc, l, err := listenBoth(ip)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return l.Addr().(*net.TCPAddr).AddrPort(), errors.Join(l.Close(), pc.Close())
}

// listenBoth takes a port of ip that neither UDP nor TCP uses. The kernel picks
// one that is free for TCP, and UDP may be in use there.
func listenBoth(ip netip.Addr) (pc net.PacketConn, l net.Listener, err error) {
	for range 100 {
		if l, err = net.Listen("tcp", netip.AddrPortFrom(ip, 0).String()); err != nil {
			return nil, nil, err
		}
		if pc, err = net.ListenPacket("udp", l.Addr().String()); err == nil {
			return pc, l, nil
		}
		_ = l.Close()
	}
	return nil, nil, err
}
