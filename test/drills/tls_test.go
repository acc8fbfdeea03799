package drills

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/test/internal/lab"
)

// TestCertificateExpired: an upstream whose certificate has expired is not
// believed. Alone it makes SERVFAIL with Network Error; beside a good one,
// names resolve.
func TestCertificateExpired(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	now := time.Now()
	expired, caExpired := certificate(t, upstream, now.Add(-time.Hour))
	good, caGood := certificate(t, second, now.Add(time.Hour))
	ca := lab.WriteFile(t, filepath.Join(t.TempDir(), "ca.pem"), caExpired+caGood)
	serveTLS(t, n, upstream, expired)
	serveTLS(t, n, second, good)
	d := start(t, n, corefile("tls://"+upstream, "tls "+ca))
	r := n.Ask(t, "udp", server, lab.Query("alone.example.org.", dns.TypeA).SetEdns0(1232, false))
	if r.Rcode != dns.RcodeServerFailure {
		t.Errorf("an expired certificate was believed: %v", r)
	}
	if code := ede(r); code != int(dns.ExtendedErrorCodeNetworkError) && code != int(dns.ExtendedErrorCodeNoReachableAuthority) {
		t.Errorf("EDE %d", code)
	}
	d.Err.Await(t, 0, `expired`)

	lab.ReplaceFile(t, d.Conf, corefile("tls://"+upstream+" tls://"+second, "tls "+ca+"\npolicy sequential"))
	mark := d.Err.Mark()
	d.Signal(t, hangup)
	d.Err.Await(t, mark, `msg=reloaded`)
	resolves(t, n, "beside.example.org.")
}

// ede is the code of r's extended error, or -1.
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

// serveTLS answers on ip, port 853, until the end of the test.
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

// certificate makes a self-signed one for ip, valid until the given time, and
// its PEM form.
func certificate(t *testing.T, ip string, until time.Time) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: ip},
		NotBefore: until.Add(-48 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.ParseIP(ip)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
