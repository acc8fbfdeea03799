package daemon

import (
	"net"
	"sync"
	"time"
)

// lateListener is a listener whose Accept waits until no other process has the address.
type lateListener struct {
	listen func() (net.Listener, error)
	retry  time.Duration // between two attempts
	opened func()        // called once, when listen succeeds; mu is held

	mu     sync.Mutex // guards ln
	ln     net.Listener
	closed chan struct{} // closed by Close
	once   sync.Once
}

// Accept listens first, if needed.
func (l *lateListener) Accept() (net.Conn, error) {
	for {
		ln, err := l.open()
		if err == nil {
			return ln.Accept()
		}
		select {
		case <-l.closed:
			return nil, net.ErrClosed
		case <-time.After(l.retry):
		}
	}
}

func (l *lateListener) open() (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	if l.ln != nil {
		return l.ln, nil
	}
	ln, err := l.listen()
	if err == nil {
		l.ln = ln
		l.opened()
	}
	return ln, err
}

// Close ends Accept.
func (l *lateListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln == nil {
		return nil
	}
	return l.ln.Close()
}

// Addr returns nil before the address is open.
func (l *lateListener) Addr() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln == nil {
		return nil
	}
	return l.ln.Addr()
}
