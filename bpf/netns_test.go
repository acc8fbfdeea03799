package bpf

import (
	"net"
	"net/netip"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// serve answers UDP and TCP at addr in the namespace with the answers of respond,
// until the test ends.
func serve(t testing.TB, ns *lab.Netns, addr, name string) {
	t.Helper()
	var udp *net.UDPConn
	var tcp *net.TCPListener
	ns.Inside(t, func() (err error) {
		ap := netip.MustParseAddrPort(addr)
		if udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(ap)); err != nil {
			return err
		}
		tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
		return err
	})
	stop := answer(udp, tcp, name)
	t.Cleanup(stop)
}

// answer serves until stop is called. stop waits for the end.
func answer(udp *net.UDPConn, tcp *net.TCPListener, name string) (stop func()) {
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 2048)
		for {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = udp.WriteToUDPAddrPort(respond(name, buf[:n]), from)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buf := make([]byte, 2048)
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			if n, err := c.Read(buf); err == nil {
				_, _ = c.Write(respond(name, buf[:n]))
			}
			_ = c.Close()
		}
	}()
	return func() {
		_ = udp.Close()
		_ = tcp.Close()
		<-done
		<-done
	}
}
