package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

func truncating(f *fake) {
	f.onUDP = func(q seen, send func([]byte)) {
		send(reply(q.msg, func(m *dns.Msg) { m.Truncated = true }))
	}
}

func forceTCP(c *PoolConfig) { c.ForceTCP, c.PreferUDP = true, true }

func TestTruncatedIsAskedOverTCP(t *testing.T) {
	cut := func(f *fake) {
		f.onUDP = func(q seen, send func([]byte)) {
			b := reply(q.msg, func(m *dns.Msg) { withA("192.0.2.7")(m); m.Truncated = true })
			send(b[:len(b)-2])
		}
	}
	for name, script := range map[string]func(*fake){"empty": truncating, "cut within a record": cut} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, script)
			p, _ := newTestPool(t, func(c *PoolConfig) { c.PreferUDP = true }, f.endpoint())
			if m := mustAnswer(t, p, "example.org."); m.Truncated {
				t.Error("TC set")
			}
			q := f.queries()
			if len(q) != 2 || q[0].tcp || !q[1].tcp {
				t.Fatalf("%d queries", len(q))
			}
			if q[0].msg.Id == q[1].msg.Id {
				t.Log("same ID by chance")
			}
		})
	}
}

func TestOversizedDatagramIsTruncated(t *testing.T) {
	big := func(m *dns.Msg) {
		for range 400 {
			withA("192.0.2.9")(m)
		}
	}
	f := newFake(t, answering(big))
	p, _ := newTestPool(t, nil, f.endpoint())
	mustAnswer(t, p, "example.org.")
	if q := f.queries(); len(q) != 2 || !q[1].tcp {
		t.Errorf("%d queries", len(q))
	}
}

func TestTruncatedIsKeptIfTCPFails(t *testing.T) {
	for name, onConn := range map[string]func(*fake) func(int, net.Conn){
		"closed":  func(*fake) func(int, net.Conn) { return nil },
		"refuses": func(f *fake) func(int, net.Conn) { return refusing(f) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(f *fake) { truncating(f); f.onConn = onConn(f) })
			p, reg := newTestPool(t, nil, f.endpoint())
			m, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
			if err != nil || !m.Truncated {
				t.Fatalf("%v, %v; want the truncated answer", m, err)
			}
			wantSeries(t, reg, 1, "nodens_upstream_truncated_total")
		})
	}
}

func refusing(f *fake) func(int, net.Conn) {
	return func(_ int, c net.Conn) {
		f.serve(c, func(q seen) []byte { return reply(q.msg, withRcode(dns.RcodeRefused)) })
	}
}

func TestForceTCPReusesTheConnection(t *testing.T) {
	f := newFake(t, nil)
	p, reg := newTestPool(t, forceTCP, f.endpoint())
	for range 3 {
		mustAnswer(t, p, "example.org.")
	}
	for _, q := range f.queries() {
		if !q.tcp {
			t.Error("a query over UDP")
		}
	}
	to := f.addr.String()
	wantSeries(t, reg, 2, "coredns_proxy_conn_cache_hits_total", "to", to, "proto", "tcp", "proxy_name", "forward")
	wantSeries(t, reg, 1, "coredns_proxy_conn_cache_misses_total", "to", to, "proto", "tcp")
	start(t, p)() // closes the connection, or the fake's Cleanup would have to
	if n := (*p.servers.Load())[0].conns.idleNow(); n != 0 {
		t.Error("a connection is kept after Run")
	}
}

func (cs *conns) idleNow() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.idle)
}

// waitClosed waits until the peer's close or bytes have ended the idle connection
// of p.
func waitClosed(t *testing.T, p *Pool) {
	t.Helper()
	s := (*p.servers.Load())[0]
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s.conns.idleNow() == 0 {
			return
		}
	}
	t.Fatal("the idle connection stays open")
}

func TestIdleConnectionIsValidated(t *testing.T) {
	tests := map[string]func(c net.Conn){
		"closed by peer": func(c net.Conn) { _ = c.Close() },
		"reset by peer": func(c net.Conn) {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		},
		"unexpected bytes": func(c net.Conn) { _, _ = c.Write([]byte{0, 3, 'b', 'a', 'd'}) },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.onConn = func(n int, c net.Conn) {
					q, err := f.read(c)
					if err != nil {
						return
					}
					_, _ = c.Write(frame(answer(q.msg)))
					if n == 0 {
						spoil(c)
					}
					_, _ = f.read(c) // until the pool closes it
				}
			})
			p, reg := newTestPool(t, forceTCP, f.endpoint())
			mustAnswer(t, p, "example.org.")
			waitClosed(t, p)
			mustAnswer(t, p, "example.org.")
			wantSeries(t, reg, 0, "coredns_proxy_conn_cache_hits_total")
			wantSeries(t, reg, 2, "coredns_proxy_conn_cache_misses_total")
			if n := len(f.queries()); n != 2 {
				t.Errorf("%d queries, want 2", n)
			}
		})
	}
}

func TestFailedReusedConnectionIsReplaced(t *testing.T) {
	tests := map[string]func(q seen, c net.Conn){
		"reset in the middle of a reply": func(q seen, c net.Conn) {
			_, _ = c.Write(frame(answer(q.msg))[:20])
			_ = c.(*net.TCPConn).SetLinger(0)
		},
		"closed without a reply": func(seen, net.Conn) {},
		"reply to something else": func(q seen, c net.Conn) {
			_, _ = c.Write(frame(spoiled(q.msg, func(m *dns.Msg) { m.Question[0].Name = "other.example." })))
		},
		"garbage":  func(_ seen, c net.Conn) { _, _ = c.Write(frame([]byte("no DNS message"))) },
		"an empty": func(_ seen, c net.Conn) { _, _ = c.Write(frame(nil)) },
	}
	for name, fail := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func(f *fake) {
				f.onConn = func(n int, c net.Conn) {
					first := true
					f.serve(c, func(q seen) []byte {
						if n == 0 && !first {
							fail(q, c)
							return nil
						}
						first = false
						return answer(q.msg)
					})
				}
			})
			p, reg := newTestPool(t, forceTCP, f.endpoint())
			for range 3 {
				mustAnswer(t, p, "example.org.")
			}
			// One retry within the try: 4 queries, no failure of the server.
			if n := len(f.queries()); n != 4 {
				t.Errorf("%d queries, want 4", n)
			}
			wantSeries(t, reg, 3, "coredns_forward_requests_total")
			if s := (*p.servers.Load())[0]; s.fails != 0 {
				t.Errorf("%d failures noted", s.fails)
			}
		})
	}
}

// mutes is a Dialer in a synctest bubble. Its server answers the first query of
// each connection. On the first few connections it answers no other.
type mutes struct {
	few int

	dialled atomic.Int32
	work    sync.WaitGroup // of the servers; each ends with its connection
}

func (d *mutes) DialContext(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	n := int(d.dialled.Add(1))
	d.work.Go(func() {
		defer theirs.Close()
		f := new(fake)
		for i := 0; ; i++ {
			q, err := f.read(theirs)
			if err != nil {
				return
			}
			if i == 0 || n > d.few {
				time.Sleep(time.Millisecond)
				_, _ = theirs.Write(frame(answer(q.msg)))
			}
		}
	})
	return ours, nil
}

// mutePool makes a pool that queries d over TCP.
func mutePool(t *testing.T, d *mutes) *Pool {
	p, _ := newTestPool(t, func(c *PoolConfig) { forceTCP(c); c.Dialer, c.NoHedge = d, false },
		Endpoint{Addr: netip.MustParseAddrPort(addrA)})
	t.Cleanup(d.work.Wait)
	start(t, p)
	return p
}

func TestSilentReusedConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &mutes{few: 1}
		p := mutePool(t, d)
		for range 3 {
			mustAnswer(t, p, "example.org.")
		}
		if n := d.dialled.Load(); n != 2 {
			t.Errorf("%d connections, want 2: the silent one must not be used again", n)
		}
	})
}

func TestSplitWrites(t *testing.T) {
	f := newFake(t, func(f *fake) {
		f.onConn = func(_ int, c net.Conn) {
			_ = c.(*net.TCPConn).SetNoDelay(true)
			f.serve(c, func(q seen) []byte {
				b := frame(answer(q.msg))
				for i := range len(b) - 1 {
					_, _ = c.Write(b[i : i+1])
				}
				_, _ = c.Write(b[len(b)-1:])
				return nil
			})
		}
	})
	p, _ := newTestPool(t, forceTCP, f.endpoint())
	mustAnswer(t, p, "example.org.")
}

func TestCancelledQueryClosesItsConnection(t *testing.T) {
	asked, closed := make(chan bool), make(chan bool)
	f := newFake(t, func(f *fake) {
		f.onConn = func(n int, c net.Conn) {
			if n > 0 {
				f.serve(c, func(q seen) []byte { return answer(q.msg) })
				return
			}
			_, _ = f.read(c)
			asked <- true
			_, _ = f.read(c)
			close(closed)
		}
	})
	p, _ := newTestPool(t, forceTCP, f.endpoint())
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := p.Exchange(ctx, asking("example.org.", dns.TypeA)); err == nil {
		t.Fatal("a silent server answers")
	}
	<-closed
	if s := (*p.servers.Load())[0]; s.fails != 0 {
		t.Error("a cancelled query counts as a failure of the server")
	}
	mustAnswer(t, p, "example.org.")
}

// authority makes certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, err = x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) issue(name string, notAfter time.Time) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
	}
	if ip := net.ParseIP(name); ip != nil {
		tpl.DNSNames, tpl.IPAddresses = nil, []net.IP{ip}
	}
	der, err := x509.CreateCertificate(rand.Reader, tpl, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// speakingTLS makes a script whose server answers one query per connection. It
// sends the state after each handshake to states.
func speakingTLS(c *tls.Config, states chan<- tls.ConnectionState) func(*fake) {
	return func(f *fake) {
		f.onConn = func(_ int, raw net.Conn) {
			t := tls.Server(raw, c)
			defer t.Close()
			if err := t.Handshake(); err != nil {
				return
			}
			if states != nil {
				states <- t.ConnectionState()
			}
			q, err := f.read(t)
			if err == nil {
				_, _ = t.Write(frame(answer(q.msg)))
			}
		}
	}
}

func TestTLSResumes(t *testing.T) {
	a := newAuthority(t)
	states := make(chan tls.ConnectionState, 3)
	conf := &tls.Config{Certificates: []tls.Certificate{a.issue("dns.example", time.Now().Add(time.Hour))}}
	f := newFake(t, speakingTLS(conf, states))
	p, reg := newTestPool(t, func(c *PoolConfig) { c.TLS = &tls.Config{RootCAs: a.pool()} },
		Endpoint{Addr: f.addr, TLS: true, ServerName: "dns.example"})
	for range 2 {
		mustAnswer(t, p, "example.org.")
	}
	first, second := <-states, <-states
	if first.DidResume || !second.DidResume || first.ServerName != "dns.example" {
		t.Errorf("resumed: %v, %v; name %q", first.DidResume, second.DidResume, first.ServerName)
	}
	if n, _ := series(t, reg, "coredns_proxy_conn_cache_misses_total", "proto", "tcp-tls"); n != 2 {
		t.Errorf("%v connections counted, want 2", n)
	}
}

func TestTLSKeepsConnections(t *testing.T) {
	a := newAuthority(t)
	f := newFake(t, func(f *fake) {
		conf := &tls.Config{Certificates: []tls.Certificate{a.issue(f.addr.Addr().String(), time.Now().Add(time.Hour))}}
		f.onConn = func(_ int, raw net.Conn) {
			f.serve(tls.Server(raw, conf), func(q seen) []byte { return answer(q.msg) })
		}
	})
	// No server name: the certificate must name the address.
	p, reg := newTestPool(t, func(c *PoolConfig) { c.TLS = &tls.Config{RootCAs: a.pool()} },
		Endpoint{Addr: f.addr, TLS: true})
	for range 3 {
		mustAnswer(t, p, "example.org.")
	}
	wantSeries(t, reg, 2, "coredns_proxy_conn_cache_hits_total", "proto", "tcp-tls")
}

func TestTLSRefusesBadServers(t *testing.T) {
	a := newAuthority(t)
	good := a.issue("dns.example", time.Now().Add(time.Hour))
	tests := map[string]struct {
		conf  *tls.Config
		roots *x509.CertPool
		want  string
	}{
		"wrong name": {&tls.Config{Certificates: []tls.Certificate{a.issue("evil.example", time.Now().Add(time.Hour))}},
			a.pool(), "evil.example"},
		"expired": {&tls.Config{Certificates: []tls.Certificate{a.issue("dns.example", time.Now().Add(-time.Hour))}},
			a.pool(), "expired"},
		"unknown authority": {&tls.Config{Certificates: []tls.Certificate{good}}, x509.NewCertPool(), "unknown authority"},
		"TLS 1.1": {&tls.Config{Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10,
			MaxVersion: tls.VersionTLS11}, a.pool(), "version"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, speakingTLS(tt.conf, nil))
			p, _ := newTestPool(t, func(c *PoolConfig) { c.TLS = &tls.Config{RootCAs: tt.roots} },
				Endpoint{Addr: f.addr, TLS: true, ServerName: "dns.example"})
			_, err := p.Exchange(t.Context(), asking("example.org.", dns.TypeA))
			var e *Error
			if !errors.As(err, &e) || e.EDE != edeNetworkError {
				t.Fatalf("error %v, want EDE %d", err, edeNetworkError)
			}
			for _, part := range []string{tt.want, f.addr.String(), "dns.example"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
			if n := len(f.queries()); n != 0 {
				t.Errorf("%d queries were sent", n)
			}
		})
	}
}

// TestSilenceDropsOlderIdleConnections has two connections whose server falls
// silent. The query that finds the first one silent closes the other one too.
func TestSilenceDropsOlderIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &mutes{few: 2}
		p := mutePool(t, d)
		var queries sync.WaitGroup
		for range 2 {
			queries.Go(func() {
				if _, err := p.Exchange(context.Background(), asking("example.org.", dns.TypeA)); err != nil {
					t.Error(err)
				}
			})
		}
		queries.Wait()
		if n := d.dialled.Load(); n != 2 {
			t.Fatalf("%d connections, want 2 that are about to fall silent", n)
		}
		time.Sleep(time.Millisecond) // a connection that became idle after the query started stays open
		mustAnswer(t, p, "example.org.")
		if n := (*p.servers.Load())[0].conns.idleNow(); n != 1 {
			t.Errorf("%d idle connections, want the fresh one", n)
		}
	})
}

func TestExpiredConnectionIsNotUsed(t *testing.T) {
	f := newFake(t, nil)
	now := time.Now()
	p, reg := newTestPool(t, func(c *PoolConfig) {
		forceTCP(c)
		c.Expire, c.Now = 10*time.Second, func() time.Time { return now }
	}, f.endpoint())
	mustAnswer(t, p, "example.org.")
	now = now.Add(9 * time.Second)
	mustAnswer(t, p, "example.org.")
	now = now.Add(10 * time.Second)
	mustAnswer(t, p, "example.org.")
	wantSeries(t, reg, 1, "coredns_proxy_conn_cache_hits_total")
	wantSeries(t, reg, 2, "coredns_proxy_conn_cache_misses_total")
}
