package fastpath

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup"
)

// attachPause is the time between two attachments, which block changes of the host's
// network for about 16 ms each.
const attachPause = 200 * time.Millisecond

// pollInterval is the time between two looks without events from the kernel.
const pollInterval = 10 * time.Second

// MaxInterfaces is the number of interfaces that get the program.
const MaxInterfaces = 512

// linkFollower attaches the program to pods' veths as they come and go.
type linkFollower struct {
	*Controller
	cancel context.CancelFunc
	wg     sync.WaitGroup
	failed retries
	logged map[string]bool // errors that fail has logged
}

func newLinkFollower(c *Controller) *linkFollower {
	return &linkFollower{Controller: c, failed: make(retries), logged: make(map[string]bool)}
}

func (f *linkFollower) start(ctx context.Context) {
	ctx, f.cancel = context.WithCancel(ctx)
	f.wg.Go(func() { f.follow(ctx) })
	f.wg.Go(func() { f.findClients(ctx) })
	f.wg.Go(func() { f.reportHits(ctx) })
}

// stop ends the goroutines and waits for them.
func (f *linkFollower) stop() {
	f.cancel()
	f.wg.Wait()
}

// follow attaches until ctx is done.
func (f *linkFollower) follow(ctx context.Context) {
	changed := make(chan struct{}, 1)
	f.wg.Go(func() {
		if err := netsetup.FollowLinks(ctx, changed); err != nil {
			f.log.Warn("cannot watch interfaces: nodens checks at intervals", "interval", pollInterval, "error", err)
		}
	})
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if f.update() { // one more to attach
			select {
			case <-ctx.Done():
				return
			case <-time.After(attachPause):
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// update detaches the program where it does not belong, and attaches it to one
// interface. It reports whether there are more.
func (f *linkFollower) update() (more bool) {
	wanted, bridges, err := f.wantedLinks()
	if err != nil {
		f.fail(0, fmt.Errorf("find pods' interfaces: %w", err))
		return false
	}
	attached, now := make(map[int]bool), time.Now()
	for _, i := range f.kernel.Attached() {
		if _, ok := wanted[i]; ok {
			attached[i] = true
			continue
		}
		if err := f.kernel.Detach(i); err != nil {
			f.log.Error("removing the program from an interface failed", "error", err)
		}
	}
	f.failed.keep(wanted)
	for _, i := range slices.Sorted(maps.Keys(wanted)) {
		if attached[i] || !f.failed.due(i, now) {
			continue
		}
		if len(attached) == MaxInterfaces {
			f.fail(0, errInterfaces)
			break
		}
		more = true
		if err := f.kernel.Attach(i); err != nil {
			f.failed.add(i, now)
			f.fail(i, err)
			break
		}
		delete(f.failed, i)
		attached[i] = true
		break
	}
	f.clients.use(attached, bridges)
	return more
}

var errInterfaces = fmt.Errorf("more than %d interfaces of pods", MaxInterfaces)

// fail logs err unless it is remembered as logged. ifindex is the interface, or 0.
func (f *linkFollower) fail(ifindex int, err error) {
	const most = 100 // errors that are remembered
	if f.logged[err.Error()] {
		return
	}
	if len(f.logged) == most {
		clear(f.logged)
	}
	f.logged[err.Error()] = true
	log := f.log
	if l, gone := net.InterfaceByIndex(ifindex); gone == nil {
		log = log.With("interface", l.Name)
	}
	log.Warn("the kernel does not answer some pods; nodens answers them", "error", err)
}

// wantedLinks returns the interfaces that get the program, and the bridges of which
// they are ports.
func (f *linkFollower) wantedLinks() (wanted, bridges map[int]bool, err error) {
	veths, err := podLinks("veth")
	if err != nil {
		return nil, nil, err
	}
	allowed, err := newOptOut(f.plan)
	if err != nil {
		return nil, nil, err
	}
	wanted, bridges = make(map[int]bool), make(map[int]bool)
	for _, l := range veths {
		a := l.Attrs()
		if !allowed(a.NetNsID) {
			continue
		}
		wanted[a.Index] = true
		if a.MasterIndex != 0 {
			bridges[a.MasterIndex] = true
		}
	}
	return wanted, bridges, nil
}

// podLinks returns the interfaces of a kind, veth or netkit, whose other ends are in other
// network namespaces. It leaves out uplinks: if the node is a container, its uplink may be
// a veth, too.
func podLinks(kind string) ([]netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	uplinks, err := netsetup.Uplinks(nil)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		return l.Type() != kind || a.NetNsID < 0 || a.Flags&net.FlagUp == 0 ||
			slices.ContainsFunc(uplinks, func(u netsetup.Uplink) bool { return u.Index == a.Index })
	}), nil
}

// findClients finds the veths of clients behind bridges until ctx is done.
func (f *linkFollower) findClients(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case from := <-f.clients.unknown:
			if veth := bridgePort(from); veth != 0 {
				f.clients.found(from, veth)
			}
		}
	}
}

// bridgePort returns the port of the bridge behind which a client is: that of the MAC
// address to which the host sends the client's replies. 0: unknown.
func bridgePort(from client) int {
	family := unix.AF_INET
	if from.addr.Is6() {
		family = unix.AF_INET6
	}
	neighbours, err := netlink.NeighList(from.arrival, family)
	if err != nil {
		return 0
	}
	n := slices.IndexFunc(neighbours, func(n netlink.Neigh) bool { return n.IP.Equal(from.addr.AsSlice()) })
	if n < 0 || len(neighbours[n].HardwareAddr) == 0 {
		return 0
	}
	forwarding, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return 0
	}
	for _, e := range forwarding {
		if e.MasterIndex == from.arrival && bytes.Equal(e.HardwareAddr, neighbours[n].HardwareAddr) {
			return e.LinkIndex
		}
	}
	return 0
}
