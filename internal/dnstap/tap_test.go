package dnstap

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/dnstap/golang-dnstap"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/nodens-dns/nodens/internal/lab"
)

// newTap makes a Tap that sends to a socket in a new directory.
func newTap(t *testing.T, limit int) (*Tap, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	return startTap(t, Config{Network: "unix", Address: path}, limit), path
}

// startTap adds to c what all Taps have.
func startTap(t *testing.T, c Config, limit int) *Tap {
	t.Helper()
	c.Full, c.Logger = true, slog.New(slog.NewTextHandler(io.Discard, nil))
	c.Sent = prometheus.NewCounter(prometheus.CounterOpts{Name: "sent"})
	c.Dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "dropped"})
	tap := New(c, limit)
	t.Cleanup(tap.Close)
	return tap
}

func query(port int) *Message {
	return &Message{
		Type: ClientQuery, Protocol: UDP, Client: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(port)),
		Queried: time.Unix(7, 9), Zone: []byte{0}, Wire: make([]byte, 100),
	}
}

// read accepts one connection and returns n messages.
func read(t *testing.T, l net.Listener, n int) (all []*pb.Message) {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := pb.NewReader(conn, &pb.ReaderOptions{Bidirectional: true})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		frame := make([]byte, 64<<10)
		size, err := r.ReadFrame(frame)
		if err != nil {
			t.Fatal(err)
		}
		m := new(pb.Dnstap)
		if err := proto.Unmarshal(frame[:size], m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m.Message)
	}
	return all
}

// TestReaderReturns sends to a reader that starts late, dies and starts again.
func TestReaderReturns(t *testing.T) {
	tap, path := newTap(t, 1<<20)
	for range 2 {
		tap.Send(query(53))
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		m := read(t, l, 1)[0]
		if m.GetType() != ClientQuery || m.GetQueryPort() != 53 || m.GetQueryTimeSec() != 7 || len(m.QueryMessage) != 100 || len(m.QueryAddress) != 4 {
			t.Errorf("got %v", m)
		}
		l.Close()
	}
}

// TestNoReader fills the queue: Send does not block, and each message is queued or
// counted as dropped.
func TestNoReader(t *testing.T) {
	const limit, n = 8 << 10, 1000
	tap, _ := newTap(t, limit)
	for i := range n {
		tap.Send(query(i))
	}
	tap.mu.Lock()
	queued := len(tap.queue)
	tap.mu.Unlock()
	dropped := testutil.ToFloat64(tap.cfg.Dropped)
	if queued == 0 || queued > limit/2 || dropped == 0 || dropped >= n {
		t.Errorf("%d bytes of %d are queued, %v messages of %d dropped", queued, limit/2, dropped, n)
	}
}

// TestTLS sends to a reader with a certificate, after one whose name is wrong.
func TestTLS(t *testing.T) {
	cert, ca := lab.Certificate(t, "reader.example", time.Now().Add(time.Hour))
	wrong, wrongCA := lab.Certificate(t, "other.example", time.Now().Add(time.Hour))
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ca + wrongCA)) {
		t.Fatal("no certificate")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tap := startTap(t, Config{
		Network: "tcp", Address: l.Addr().String(), TLS: &tls.Config{RootCAs: roots, ServerName: "reader.example"},
	}, 1<<20)
	tap.Send(query(53))
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{wrong}}).Handshake() == nil {
		t.Error("a certificate of another name is accepted")
	}
	conn.Close()
	m := read(t, tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}), 1)[0]
	if m.GetQueryPort() != 53 {
		t.Errorf("got %v", m)
	}
}

// TestClose closes a Tap with messages in its queue. The reader gets them.
func TestClose(t *testing.T) {
	const n = 100
	tap, path := newTap(t, 1<<20)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := pb.NewReader(conn, &pb.ReaderOptions{Bidirectional: true})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int)
	go func() {
		frame, count := make([]byte, 64<<10), 0
		for ; err == nil; count++ {
			_, err = r.ReadFrame(frame)
		}
		got <- count - 1 // the last call has failed
	}()
	for i := range n {
		tap.Send(query(i))
	}
	tap.Close()
	if count := <-got; count != n {
		t.Errorf("%d messages of %d, then %v", count, n, err)
	}
	if sent := testutil.ToFloat64(tap.cfg.Sent); sent != n {
		t.Errorf("%v messages are counted", sent)
	}
}

// TestCloseWithoutReply closes a Tap whose reader accepts and says nothing: Close ends,
// and the messages count as dropped.
func TestCloseWithoutReply(t *testing.T) {
	tap, path := newTap(t, 1<<20)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range 3 {
		tap.Send(query(i))
	}
	tap.Close()
	if n := testutil.ToFloat64(tap.cfg.Dropped); n != 3 {
		t.Errorf("%v messages are dropped", n)
	}
}

// TestServeStops stops serve when it has not noticed the queue yet. It sends the queue.
func TestServeStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "n"}) }
	tap := &Tap{cfg: Config{Network: "unix", Address: path, Full: true, Sent: counter(), Dropped: counter()}, wake: make(chan struct{}, 1)}
	tap.SetLimit(1 << 20)
	stopped, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		c, err := tap.connect(stopped, t.Context())
		if err == nil {
			tap.Send(query(1))
			tap.Send(query(2))
			<-tap.wake
			stop()
			_, err = c.serve(stopped, nil)
			c.close(false)
		}
		result <- err
	}()
	if got := read(t, l, 2); got[0].GetQueryPort() != 1 || got[1].GetQueryPort() != 2 {
		t.Errorf("got %v", got)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestCaughtUp: the end of the drops is logged once, with their number, and the next drop is
// logged again.
func TestCaughtUp(t *testing.T) {
	var log bytes.Buffer
	tap := &Tap{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "n"})}}
	for range 2 {
		log.Reset()
		for range 3 {
			tap.Send(query(1)) // the limit is 0
		}
		tap.caughtUp() // too soon
		if text := log.String(); strings.Count(text, "messages are dropped") != 1 || strings.Contains(text, "no longer") {
			t.Error(text)
		}
		tap.dropped = tap.dropped.Add(-recovered)
		tap.caughtUp()
		tap.caughtUp()
		if text := log.String(); strings.Count(text, "no longer dropped") != 1 || !strings.Contains(text, "dropped=3") {
			t.Error(text)
		}
	}
}
