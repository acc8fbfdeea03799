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
	stampedeIDs     = 20              // queries of each socket
	silence         = 2 * time.Second // after which a query upstream is taken for lost, see -hedge
)

// TestStampede has 10,000 clients ask one name that is not cached: upstream
// sees one query, everybody gets the answer.
//
// The daemon is not the race-checked one, whose runtime bears 8,128 goroutines.
// The test does not run beside others: upstream has to hold its answer back
// until all have asked. Where that takes seconds it is asked again, rightly.
func TestStampede(t *testing.T) {
	t.Run("udp", func(t *testing.T) { stampede(t, "udp", 0) })
	t.Run("tcp, half of the clients leave", func(t *testing.T) { stampede(t, "tcp", stampedeSockets/2) })
}

// stampede runs one stampede of which the last clients leave before there is
// an answer.
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
		// Ours have one address, and upstream is slow.
		Args:     []string{"-max-misses-per-client", "16384", "-hedge=false"},
		Corefile: ". {\n errors\n cache 30\n bind " + localIP + "\n forward . " + ip + "\n " + admin + "}",
	})
	herd := make([]*herdClient, stampedeSockets)
	for i := range herd {
		herd[i] = &herdClient{conn: c.pod.Dial(t, network, localAddr), stream: network == "tcp"}
	}
	each(t, herd, func(h *herdClient) error { return h.ask(name) })
	up.WaitFor(t, name)
	// Everything that was sent has been read. Some leave now.
	stay, leave := herd[:len(herd)-leaving], herd[len(herd)-leaving:]
	each(t, leave, (*herdClient).leave)
	held := time.Since(*first.Load())
	close(release)
	each(t, stay, (*herdClient).await)
	if seen := up.Seen(name); len(seen) > 1+int(held/silence) {
		t.Errorf("upstream was asked %d times within %v, want once", len(seen), held)
	}
	// Nothing is stuck behind.
	r := c.pod.Ask(t, network, localAddr, lab.Query("after.example.org.", dns.TypeA))
	if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("after the stampede: %s %v", dns.RcodeToString[r.Rcode], got)
	}
}

// each calls f for all clients, some at a time, and fails the test with their
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

// herdClient is one socket with several queries under way.
type herdClient struct {
	conn   net.Conn
	stream bool
}

// ask sends the queries, and behind them one of an unknown opcode. Nodens
// answers that at once: its reply tells that those before have been read.
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
		return fmt.Errorf("answered before upstream was: %v", r)
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
	if err := h.conn.SetReadDeadline(time.Now().Add(lab.Patience)); err != nil {
		return nil, err
	}
	return (&dns.Conn{Conn: h.conn}).ReadMsg()
}

// await reads the answers to all queries.
func (h *herdClient) await() error {
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
			return fmt.Errorf("ID %d answered twice or never asked", r.Id)
		}
		got[r.Id] = true
	}
	return nil
}

// leave closes a connection, by a reset where the socket can.
func (h *herdClient) leave() error {
	if c, ok := h.conn.(*net.TCPConn); ok {
		if err := c.SetLinger(0); err != nil {
			return err
		}
	}
	return h.conn.Close()
}
