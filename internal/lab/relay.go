package lab

import (
	"context"
	"io"
	"net"
	"testing"
)

// Relay forwards TCP connections to address in the namespace, as kubectl port-forward
// does, until the test ends. It returns an address of the test's own namespace.
func (n *Netns) Relay(t testing.TB, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go n.join(t.Context(), c, address)
		}
	}()
	return l.Addr().String()
}

// join copies between c and a new connection to address, until one closes.
func (n *Netns) join(ctx context.Context, c net.Conn, address string) {
	defer c.Close()
	to, err := n.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer to.Close()
		_, _ = io.Copy(to, c)
	}()
	_, _ = io.Copy(c, to)
}
