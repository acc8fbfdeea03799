package drills

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestCertificateExpired: nodens rejects an upstream with an expired certificate.
// Clients get SERVFAIL with Network Error if it is the only upstream, and answers if
// there is a good one too.
func TestCertificateExpired(t *testing.T) {
	t.Parallel()
	n := lab.NewNetns(t, "node", addresses...)
	now := time.Now()
	expired, caExpired := lab.Certificate(t, upstream, now.Add(-time.Hour))
	good, caGood := lab.Certificate(t, second, now.Add(time.Hour))
	ca := lab.WriteFile(t, filepath.Join(t.TempDir(), "ca.pem"), caExpired+caGood)
	serveTLS(t, n, upstream, expired)
	serveTLS(t, n, second, good)
	d := start(t, n, corefile("tls://"+upstream, "tls "+ca))
	r := n.Ask(t, "udp", server, lab.Query("alone.example.org.", dns.TypeA).SetEdns0(1232, false))
	if r.Rcode != dns.RcodeServerFailure {
		t.Errorf("an expired certificate was accepted: %v", r)
	}
	if code := ede(r); code != int(dns.ExtendedErrorCodeNetworkError) && code != int(dns.ExtendedErrorCodeNoReachableAuthority) {
		t.Errorf("EDE %d", code)
	}
	d.Err.WaitFor(t, 0, `expired`)

	lab.ReplaceFile(t, d.Conf, corefile("tls://"+upstream+" tls://"+second, "tls "+ca+"\npolicy sequential"))
	mark := d.Err.Mark()
	d.Signal(t, hangup)
	d.Err.WaitFor(t, mark, `msg=reloaded`)
	resolves(t, n, "beside.example.org.")
}

// ede returns the code of the extended DNS error in r, or -1.
func ede(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

// serveTLS answers over TLS at ip, port 853, until the end of the test.
func serveTLS(t *testing.T, n *lab.Netns, ip string, c tls.Certificate) {
	t.Helper()
	up := make(chan struct{})
	s := &dns.Server{
		Listener:          tls.NewListener(n.Listen(t, "tcp", net.JoinHostPort(ip, "853")), &tls.Config{Certificates: []tls.Certificate{c}}),
		Net:               "tcp-tls",
		NotifyStartedFunc: func() { close(up) },
		Handler:           dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(answer(q)) }),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ActivateAndServe() }()
	<-up
	t.Cleanup(func() { _ = s.Shutdown(); <-ended })
}
