package test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	stampedeSockets = 500
	stampedeIDs     = 20              // queries per socket
	silence         = 2 * time.Second // after which nodens considers an upstream query lost, see -hedge
)

// TestStampede sends queries for one name that is not cached from 10,000 clients:
// the upstream receives one query, every client gets the answer.
//
// The daemon has no race detector, which supports 8,128 goroutines. The test does
// not run in parallel: the upstream holds its answer until all clients have sent
// their queries. If that takes seconds, nodens rightly retries.
func TestStampede(t *testing.T) {
	t.Run("udp", func(t *testing.T) { stampede(t, "udp", 0) })
	t.Run("tcp, half of the clients leave", func(t *testing.T) { stampede(t, "tcp", stampedeSockets/2) })
}

// stampede runs one stampede. The last clients leave before the answer comes.
func stampede(t *testing.T, network string, leaving int) {
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	const name = "popular.example.org."
	release := make(chan struct{})
	var first atomic.Pointer[time.Time]
	up := lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		if q.Question[0].Name == name {
			now := time.Now()
			first.CompareAndSwap(nil, &now)
			select {
			case <-release:
			case <-t.Context().Done():
			}
		}
		return lab.Reply(q, q.Question[0].Name+" 30 IN A 192.0.2.1")
	})
	lab.StartDaemon(t, lab.DaemonOptions{
		Binary: buildPlain.Path(t), Netns: c.node,
		// All clients have one address, and the upstream is slow.
		Args:     []string{"-max-misses-per-client", "16384", "-hedge=false"},
		Corefile: ". {\n errors\n cache 30\n bind " + localIP + "\n forward . " + ip + "\n " + admin + "}",
	})
	herd := make([]*herdClient, stampedeSockets)
	for i := range herd {
		herd[i] = &herdClient{conn: c.pod.Dial(t, network, localAddr), stream: network == "tcp"}
	}
	each(t, herd, func(h *herdClient) error { return h.ask(name) })
	up.WaitFor(t, name)
	// nodens has read all queries. Some clients leave now.
	stay, leave := herd[:len(herd)-leaving], herd[len(herd)-leaving:]
	each(t, leave, (*herdClient).leave)
	held := time.Since(*first.Load())
	close(release)
	each(t, stay, (*herdClient).wait)
	if seen := up.Seen(name); len(seen) > 1+int(held/silence) {
		t.Errorf("%d queries to the upstream within %v, want one", len(seen), held)
	}
	// No query is left waiting.
	r := c.pod.Ask(t, network, localAddr, lab.Query("after.example.org.", dns.TypeA))
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("after the stampede: %s %v", dns.RcodeToString[r.Rcode], got)
	}
}

// each calls f for all clients, several at a time, and fails the test with their
// errors.
func each(t *testing.T, herd []*herdClient, f func(*herdClient) error) {
	t.Helper()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, h := range herd {
		wg.Go(func() {
			if err := f(h); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		t.Fatalf("%d of %d clients failed; %v", len(errs), len(herd), errors.Join(errs[:min(len(errs), 5)]...))
	}
}

// herdClient is one socket with several queries.
type herdClient struct {
	conn   net.Conn
	stream bool
}

// ask sends the queries and then one with an unknown opcode. nodens answers that
// one at once, so its reply shows that the others have been read.
func (h *herdClient) ask(name string) error {
	var out []byte
	for id := range stampedeIDs {
		q := lab.Query(name, dns.TypeA)
		q.Id = uint16(id)
		if err := h.send(&out, q); err != nil {
			return err
		}
	}
	last := lab.Query(name, dns.TypeA)
	last.Id, last.Opcode = stampedeIDs, 15
	if err := h.send(&out, last); err != nil {
		return err
	}
	if h.stream {
		if _, err := h.conn.Write(out); err != nil {
			return err
		}
	}
	r, err := h.read()
	if err == nil && (r.Id != stampedeIDs || r.Rcode != dns.RcodeNotImplemented) {
		return fmt.Errorf("reply before the upstream's: %v", r)
	}
	return err
}

// send sends q as a datagram, or appends its frame to out.
func (h *herdClient) send(out *[]byte, q *dns.Msg) error {
	b, err := q.Pack()
	if err != nil {
		return err
	}
	if h.stream {
		*out = append(binary.BigEndian.AppendUint16(*out, uint16(len(b))), b...)
		return nil
	}
	_, err = h.conn.Write(b)
	return err
}

func (h *herdClient) read() (*dns.Msg, error) {
	if err := h.conn.SetReadDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		return nil, err
	}
	return (&dns.Conn{Conn: h.conn}).ReadMsg()
}

// wait reads the answers to all queries.
func (h *herdClient) wait() error {
	var got [stampedeIDs]bool
	for range stampedeIDs {
		r, err := h.read()
		if err != nil {
			return err
		}
		if data := lab.Data(r, dns.TypeA); r.Rcode != dns.RcodeSuccess || !slices.Equal(data, []string{"192.0.2.1"}) {
			return fmt.Errorf("answer %d: %s %v", r.Id, dns.RcodeToString[r.Rcode], data)
		}
		if r.Id >= stampedeIDs || got[r.Id] {
			return fmt.Errorf("ID %d answered twice or never sent", r.Id)
		}
		got[r.Id] = true
	}
	return nil
}

// leave closes the connection, with a reset if the socket supports it.
func (h *herdClient) leave() error {
	if c, ok := h.conn.(*net.TCPConn); ok {
		if err := c.SetLinger(0); err != nil {
			return err
		}
	}
	return h.conn.Close()
}
