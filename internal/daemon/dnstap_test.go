package daemon

import (
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	pb "github.com/dnstap/golang-dnstap"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// TestTapsReload adds a reader, changes it and removes it, as reloads do. Each change
// sends what is queued, and the memory is reserved as long as there is a reader.
func TestTapsReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var reserved int64
	taps := newTaps(base{
		opts: new(Options), log: slog.New(slog.NewTextHandler(io.Discard, nil)), registry: prometheus.NewRegistry(),
	}, 1<<20, func(n int64) { reserved += n })
	block := func(identity string) *config.Block {
		return &config.Block{Dnstap: []*config.Dnstap{{Network: "unix", Address: path, Identity: identity}}}
	}
	keep := map[string]bool{}
	first, key := taps.open(block("a"), keep)
	if same, k := taps.open(block("a"), keep); same[0] != first[0] || k != key {
		t.Error("an equal directive has another connection")
	}
	old := count(t, l)
	first.clients(".")(upstream.TapMessage{Queried: time.Unix(1, 0)})
	keep = map[string]bool{}
	second, _ := taps.open(block("b"), keep)
	current := count(t, l)
	taps.retain(keep)
	if n := <-old; n != 1 {
		t.Errorf("the reader got %d messages before the reload", n)
	}
	if reserved != 1<<20 {
		t.Errorf("%d bytes are reserved", reserved)
	}
	second.forwarder(".")(upstream.TapMessage{Queried: time.Unix(1, 0)})
	taps.retain(nil)
	if n := <-current; n != 1 {
		t.Errorf("the reader got %d messages after the reload", n)
	}
	if reserved != 0 {
		t.Errorf("%d bytes are reserved without a reader", reserved)
	}
}

// count accepts a connection. The channel gets the number of its messages when it ends.
func count(t *testing.T, l net.Listener) <-chan int {
	t.Helper()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r, err := pb.NewReader(conn, &pb.ReaderOptions{Bidirectional: true})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	go func() {
		defer conn.Close()
		n, frame := 0, make([]byte, 64<<10)
		for ; err == nil; n++ {
			_, err = r.ReadFrame(frame)
		}
		got <- n - 1 // the last call has failed
	}()
	return got
}
