package dnstap

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	pb "github.com/dnstap/golang-dnstap"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
)

// newTap makes a Tap that sends to a socket in a new directory.
func newTap(t *testing.T, limit int) (*Tap, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	tap := New(Config{
		Network: "unix", Address: path, Full: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Sent:    prometheus.NewCounter(prometheus.CounterOpts{Name: "sent"}),
		Dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "dropped"}),
	}, limit)
	t.Cleanup(tap.Close)
	return tap, path
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
