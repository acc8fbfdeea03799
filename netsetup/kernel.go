package netsetup

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// kernel holds the rtnetlink sockets of one network namespace. Neither it nor
// anything that uses it caches what the kernel said.
type kernel struct {
	netNS int
	links *netlink.Handle
	route map[int]*nl.SocketHandle
}

// openKernel opens the sockets in the namespace netNS refers to, 0 being the
// caller's own.
func openKernel(netNS int) (*kernel, error) {
	ns := netns.None()
	if netNS != 0 {
		ns = netns.NsHandle(netNS)
	}
	links, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	route := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	return &kernel{netNS: netNS, links: links, route: route}, nil
}

func (k *kernel) Close() error {
	k.links.Close()
	for _, s := range k.route {
		s.Close()
	}
	return nil
}

// request is an rtnetlink request on the namespace's socket.
func (k *kernel) request(msgType, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(msgType, flags)
	req.Sockets = k.route
	return req
}

// link returns nil where no link has that name.
func (k *kernel) link(name string) (netlink.Link, error) {
	l, err := k.links.LinkByName(name)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %s: %w", name, err)
	}
	return l, nil
}

// linkName names a link in an error.
func (k *kernel) linkName(index int) string {
	l, err := k.links.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("#%d", index)
	}
	return l.Attrs().Name
}
