package redirect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/bpf"
)

// Bounds of a round.
const (
	probedPods  = 5   // from which it queries
	visitedPods = 256 // also those without an address; nodes usually have fewer pods
)

// reach is the result of a round: whether pods reach the local addresses.
type reach int

const (
	reachUnknown reach = iota // there is no pod to query from
	reachWorks                // each address is reached by some pod
	reachFailed               // some address is reached by no pod
)

// podProbe queries the local addresses from pods' network namespaces.
type podProbe struct {
	kubepods string
	identity string // of this process; other servers' answers do not count
	vips     []netip.AddrPort
}

// round queries from a few pods. Its result is void once ctx is done.
func (p podProbe) round(ctx context.Context) (reach, error) {
	reached, failed := make(map[netip.AddrPort]bool), make(map[netip.AddrPort]bool)
	pods, visited := 0, 0
	var noEntry error
	err := bpf.PodNetworks(p.kubepods, "/proc", func(netns *os.File) bool {
		hasAddress := false
		for _, vip := range p.vips {
			switch err := p.query(ctx, netns, vip); {
			case err == nil:
				reached[vip], hasAddress = true, true
			case errors.Is(err, errNoEntry):
				noEntry = err
				return false
			case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
				// The pod has no address of this family. In gVisor, it has none at all.
			default:
				failed[vip], hasAddress = true, true
			}
		}
		visited++
		if hasAddress {
			pods++
		}
		return pods < probedPods && visited < visitedPods && ctx.Err() == nil
	})
	if err = errors.Join(noEntry, err); noEntry != nil || pods == 0 {
		return reachUnknown, err
	}
	verdict := reachUnknown
	for _, vip := range p.vips {
		switch {
		case reached[vip] && verdict == reachUnknown:
			verdict = reachWorks
		case failed[vip] && !reached[vip]:
			return reachFailed, nil
		}
	}
	return verdict, nil
}

// query returns nil if this process answers at vip.
func (p podProbe) query(ctx context.Context, netns *os.File, vip netip.AddrPort) error {
	const tries = 2
	dialed, err := dialInside(netns, vip)
	if err == nil {
		err = dialed[0].err
	}
	if err != nil {
		return err
	}
	c := dialed[0].Conn
	defer c.Close()
	m := new(dns.Msg).SetQuestion("id.server.", dns.TypeTXT)
	m.Question[0].Qclass = dns.ClassCHAOS
	for range tries {
		var reply *dns.Msg
		if reply, err = ask(ctx, c, m); err == nil {
			return p.ours(reply)
		}
	}
	return err
}

func exchange(c *dns.Conn, m *dns.Msg) (*dns.Msg, error) {
	if err := c.WriteMsg(m); err != nil {
		return nil, err
	}
	for {
		r, err := c.ReadMsg()
		if err != nil || r.Id == m.Id {
			return r, err
		}
	}
}

func (p podProbe) ours(r *dns.Msg) error {
	for _, rr := range r.Answer {
		if txt, ok := rr.(*dns.TXT); ok && strings.Join(txt.Txt, "") == p.identity {
			return nil
		}
	}
	return errors.New("another server answers")
}

// errNoEntry usually means that CAP_SYS_ADMIN is missing.
var errNoEntry = errors.New("enter a pod's network namespace")

// dialed is a socket, or the reason why there is none.
type dialed struct {
	net.Conn
	err error
}

// dialInside opens a socket to each address in a network namespace, which needs
// CAP_SYS_ADMIN. An error is errNoEntry.
func dialInside(netns *os.File, to ...netip.AddrPort) (all []dialed, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("%w: %w", errNoEntry, err)
			return
		}
		for _, a := range to {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a))
			if err != nil {
				all = append(all, dialed{err: err})
				continue
			}
			all = append(all, dialed{Conn: c})
		}
	}()
	<-done
	return all, err
}
