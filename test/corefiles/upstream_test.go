package corefiles

import (
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// The addresses of every node under test. The cluster's DNS and the resolvers outside
// give the same answers with different TTLs, which identify the upstream.
const (
	clusterDNS = "10.100.0.10"
	outside    = "10.200.0.1"
	outside2   = "10.200.0.2"
)

var upstreamTTL = map[string]int{clusterDNS: 30, outside: 300, outside2: 200}

// startUpstreams serves all upstreams in n, those outside also over TLS.
func startUpstreams(t *testing.T, n *lab.Netns, certificate tls.Certificate) {
	t.Helper()
	for ip, ttl := range upstreamTTL {
		n.AddAddrs(t, "eth0", ip+"/32")
		lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg { return scripted(q, ttl) })
	}
	s := &dns.Server{
		Listener: tls.NewListener(n.Listen(t, "tcp", net.JoinHostPort(outside, "853")), &tls.Config{Certificates: []tls.Certificate{certificate}}),
		Handler:  dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(scripted(q, upstreamTTL[outside])) }),
	}
	up, ended := make(chan struct{}), make(chan error, 1)
	s.NotifyStartedFunc = func() { close(up) }
	go func() { ended <- s.ActivateAndServe() }()
	<-up
	t.Cleanup(func() { _ = s.Shutdown(); <-ended })
}

// scripted answers by the first label of the name, which describes the answer.
func scripted(q *dns.Msg, ttl int) *dns.Msg {
	name, qtype := q.Question[0].Name, q.Question[0].Qtype
	kind := strings.TrimRight(strings.ToLower(strings.SplitN(name, ".", 2)[0]), "0123456789")
	rr := func(format string, args ...any) string {
		return fmt.Sprintf("%s %d IN ", name, ttl) + fmt.Sprintf(format, args...)
	}
	switch {
	case kind == "gone" || qtype == dns.TypeHINFO:
		return denial(q, dns.RcodeNameError, ttl)
	case kind == "broken":
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	case kind == "alias" && (qtype == dns.TypeA || qtype == dns.TypeAAAA):
		target := "target." + parent(name)
		return lab.Reply(q, rr("CNAME %s", target), fmt.Sprintf("%s %d IN %s", target, ttl, address(target, qtype)))
	case kind == "four" && qtype != dns.TypeA, kind == "empty":
		return denial(q, dns.RcodeSuccess, ttl)
	case qtype == dns.TypeA || qtype == dns.TypeAAAA:
		return lab.Reply(q, rr("%s", address(name, qtype)))
	case qtype == dns.TypePTR:
		return lab.Reply(q, rr("PTR host%d.example.", hash(name)%100))
	case qtype == dns.TypeSRV:
		return lab.Reply(q, rr("SRV 0 100 53 dns.%s", parent(name)))
	case qtype == dns.TypeTXT && kind == "large":
		return lab.Reply(q, rr("TXT %s", strings.Repeat(`"`+strings.Repeat("x", 200)+`" `, 4)))
	case qtype == dns.TypeTXT:
		return lab.Reply(q, rr(`TXT "text of %s"`, strings.ToLower(name)))
	case qtype == dns.TypeMX:
		return lab.Reply(q, rr("MX 10 mail.%s", parent(name)))
	}
	return denial(q, dns.RcodeSuccess, ttl)
}

func denial(q *dns.Msg, rcode, ttl int) *dns.Msg {
	m := lab.Denial(q, rcode, parent(q.Question[0].Name))
	m.Ns[0].Header().Ttl = uint32(ttl)
	m.Ns[0].(*dns.SOA).Minttl = uint32(ttl)
	return m
}

// address returns the type and data of the only address of name.
func address(name string, qtype uint16) string {
	h := hash(name)
	if qtype == dns.TypeAAAA {
		return fmt.Sprintf("AAAA fd00::%x:%x", h>>16, h&0xffff)
	}
	return fmt.Sprintf("A 10.%d.%d.%d", byte(h>>16), byte(h>>8), byte(h))
}

func hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(s)))
	return h.Sum32()
}

// parent returns name without its first label.
func parent(name string) string {
	i, end := dns.NextLabel(name, 0)
	if end {
		return "."
	}
	return name[i:]
}
