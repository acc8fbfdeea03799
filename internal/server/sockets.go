package server

import (
	"errors"
	"syscall"
)

// EachPort calls f with the UDP sockets of each address that is served, and with its
// TCP socket. They have SO_REUSEPORT. A program that f attaches is detached when the
// address is drained.
func (s *Server) EachPort(f func(sockets []syscall.RawConn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, l := range s.listeners {
		var udp []syscall.RawConn
		for _, u := range l.udp {
			udp = append(udp, u.raw)
		}
		errs = append(errs, f(udp))
		tcp, err := l.tcp.ln.SyscallConn()
		if err == nil {
			err = f([]syscall.RawConn{tcp})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
