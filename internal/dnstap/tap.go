package dnstap

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is one dnstap directive.
type Config struct {
	Network, Address string      // as for net.Dial; unix or tcp
	TLS              *tls.Config // nil: not encrypted
	Full             bool        // messages contain the DNS message

	Identity, Version, Extra []byte // nil: not in the messages

	Logger        *slog.Logger
	Sent, Dropped prometheus.Counter // messages
}

// Tap sends messages to one reader. Its methods are safe for concurrent use.
type Tap struct {
	cfg  Config
	wake chan struct{} // the queue is no longer empty, or half full; capacity 1
	stop context.CancelFunc
	kill context.CancelFunc // closes the connection
	done chan struct{}

	mu      sync.Mutex
	limit   int       // of queue, in bytes
	queue   []byte    // payloads, each with its length (4 bytes, big endian) in front
	full    bool      // the queue is full until the next take
	dropped time.Time // time of the last drop; zero: none since the last log line
	count   int       // messages dropped since the last log line
}

const (
	flushDelay   = 10 * time.Millisecond // to send messages together
	writeTimeout = 5 * time.Second       // after it, the reader counts as dead
	closeTimeout = time.Second           // time to send the queue when the Tap closes
	minBackoff   = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	recovered    = 10 * time.Second // time without drops until caughtUp logs
	warnInterval = 30 * time.Second // between log lines about a reader that accepts and closes
)

// New makes a Tap and starts to connect. Its memory is at most limit bytes.
func New(c Config, limit int) *Tap {
	stopped, stop := context.WithCancel(context.Background())
	killed, kill := context.WithCancel(context.Background())
	t := &Tap{cfg: c, wake: make(chan struct{}, 1), stop: stop, kill: kill, done: make(chan struct{})}
	t.SetLimit(limit)
	go t.run(stopped, killed)
	return t
}

// SetLimit changes the limit of New. One half is for the queue, the other for the
// messages that are being sent.
func (t *Tap) SetLimit(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = bytes / 2
}

// Close sends the queue, for at most closeTimeout, and closes the connection. Messages
// that are left count as dropped.
func (t *Tap) Close() {
	t.stop()
	defer time.AfterFunc(closeTimeout, t.kill).Stop()
	<-t.done
	t.kill()
}

// Send queues m, or drops it if the queue is full. It does not block.
func (t *Tap) Send(m *Message) {
	t.mu.Lock()
	full := t.full
	t.mu.Unlock()
	var payload []byte
	var err error
	if !full {
		if payload, err = t.encode(m); err != nil {
			return // does not happen: the fields are valid
		}
	}
	if t.add(payload) {
		t.cfg.Logger.Warn("dnstap messages are dropped: the reader is too slow or away", "reader", t.cfg.Address)
	}
}

// add queues payload, or drops it if it is nil or the queue is full. It reports whether
// this is the first drop since the last log line.
func (t *Tap) add(payload []byte) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.queue) + 4 + len(payload)
	if payload == nil || n > t.limit {
		t.cfg.Dropped.Inc()
		t.full, first = true, t.dropped.IsZero()
		t.dropped = time.Now()
		t.count++
		return first
	}
	if t.queue == nil {
		t.queue = make([]byte, 0, t.limit)
	}
	if len(t.queue) == 0 || n > t.limit/2 {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	t.queue = append(binary.BigEndian.AppendUint32(t.queue, uint32(len(payload))), payload...)
	return false
}

// take returns the queue. The next queue uses the memory of spare.
func (t *Tap) take(spare []byte) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.queue
	if cap(spare) != t.limit {
		spare = nil
	}
	t.queue, t.full = spare[:0], false
	return out
}

// lose counts the messages of rest and of the queue as dropped.
func (t *Tap) lose(rest []byte) {
	for _, b := range [][]byte{rest, t.take(nil)} {
		for len(b) > 0 {
			b = b[4+binary.BigEndian.Uint32(b):]
			t.cfg.Dropped.Inc()
		}
	}
}

// caughtUp logs that no message was dropped for some time.
func (t *Tap) caughtUp() {
	t.mu.Lock()
	n, again := t.count, !t.dropped.IsZero() && time.Since(t.dropped) > recovered
	if again {
		t.dropped, t.count = time.Time{}, 0
	}
	t.mu.Unlock()
	if again {
		t.cfg.Logger.Info("dnstap messages are no longer dropped", "reader", t.cfg.Address, "dropped", n)
	}
}
