package test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestDrain removes an address while nodens resolves queries to it, by a reload
// and by SIGTERM. The clients get their answers.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		end  func(t *testing.T, d *lab.Daemon)
	}{
		{"reload without the address", func(t *testing.T, d *lab.Daemon) {
			mark := d.Err.Mark()
			lab.WriteFile(t, d.Conf, ". {\n bind 127.0.0.1\n forward . 10.1.1.2\n}")
			d.Signal(t, syscall.SIGHUP)
			d.Err.WaitFor(t, mark, `msg=reloaded`)
		}},
		{"SIGTERM", func(t *testing.T, d *lab.Daemon) { d.Signal(t, syscall.SIGTERM) }},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			drain(t, s.end)
		})
	}
}

func drain(t *testing.T, end func(*testing.T, *lab.Daemon)) {
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	release := make(chan struct{})
	up := lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "slow.") {
			select {
			case <-release:
			case <-t.Context().Done():
			}
		}
		return lab.Reply(q, q.Question[0].Name+" 30 IN A "+hashed(q.Question[0].Name))
	})
	d := c.start(t, ". {\n cache 30\n bind "+localIP+"\n forward . "+ip+"\n}")
	conns := map[string]net.Conn{}
	for _, network := range []string{"udp", "tcp"} {
		conn := c.pod.Dial(t, network, localAddr)
		if err := (&dns.Conn{Conn: conn}).WriteMsg(lab.Query("slow."+network+".example.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		up.WaitFor(t, "slow."+network+".example.")
		if err := conn.SetReadDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
			t.Fatal(err)
		}
		conns[network] = conn
	}
	end(t, d)
	close(release)
	for network, conn := range conns {
		r, err := (&dns.Conn{Conn: conn}).ReadMsg()
		if err != nil {
			t.Errorf("in-flight query over %s: %v", network, err)
			continue
		}
		if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{hashed("slow." + network + ".example.")}) {
			t.Errorf("in-flight query over %s: %s %v", network, dns.RcodeToString[r.Rcode], got)
		}
	}
}

// TestSurge replaces the process five times by one that starts beside it, while
// clients send queries and a few slow lookups delay the end of the old process.
// No UDP query is lost. One TCP connection may be reset each time: unless
// net.ipv4.tcp_migrate_req is set, the kernel does not move a closing socket's
// half-open connections to another socket.
func TestSurge(t *testing.T) {
	t.Parallel()
	t.Run("udp", func(t *testing.T) { t.Parallel(); surge(t, udpLoad, 0, 0) })
	t.Run("tcp", func(t *testing.T) { t.Parallel(); surge(t, 0, tcpLoad, surges) })
}

// surges is the number of replacements.
const surges = 5

func surge(t *testing.T, udp, tcp, tolerated int) {
	c := newCluster(t)
	up := &holdingUpstream{ended: t.Context().Done(), release: make(chan struct{})}
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", up.answer)
	const corefile = ". {\n cache 30\n bind " + localIP + "\n forward . 10.1.1.2\n}"
	old := c.start(t, corefile)
	load := startLoad(t, c, udp, tcp, 1)
	for round := range surges {
		d := c.start(t, corefile)
		load.wait(t, 100)
		held := holdQueries(t, c, round)
		load.wait(t, 100) // so that each process has read some of them
		old.Signal(t, syscall.SIGTERM)
		load.wait(t, 100)
		up.next()
		for _, conn := range held {
			// On a slow machine the upstream may have held it for too long:
			// SERVFAIL.
			if _, err := (&dns.Conn{Conn: conn}).ReadMsg(); err != nil {
				t.Errorf("round %d: in-flight query: %v", round, err)
			}
		}
		if status := old.Wait(t); status != 0 {
			t.Errorf("the old process ended with status %d", status)
		}
		old = d
	}
	t.Logf("%d queries during %d replacements", load.stop(t, tolerated), surges)
}

// holdingUpstream holds its answers to names below held.example until next is
// called.
type holdingUpstream struct {
	ended <-chan struct{} // at the end of the test

	mu      sync.Mutex
	release chan struct{}
}

func (u *holdingUpstream) answer(q *dns.Msg) *dns.Msg {
	name := q.Question[0].Name
	if dns.IsSubDomain("held.example.", name) {
		u.mu.Lock()
		release := u.release
		u.mu.Unlock()
		select {
		case <-release:
		case <-u.ended:
		}
	}
	return lab.Reply(q, name+" 30 IN A "+hashed(name))
}

// next sends the held answers.
func (u *holdingUpstream) next() {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.release)
	u.release = make(chan struct{})
}

// holdQueries sends queries for held names from so many ports that each of two
// processes receives some.
func holdQueries(t *testing.T, c *cluster, round int) []net.Conn {
	t.Helper()
	var conns []net.Conn
	for i := range 16 {
		conn := c.pod.Dial(t, "udp", localAddr)
		q := lab.Query(fmt.Sprintf("n%d-%d.held.example.", round, i), dns.TypeA)
		if err := (&dns.Conn{Conn: conn}).WriteMsg(q); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	return conns
}
