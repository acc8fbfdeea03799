package netsetup

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// kernelTimeout bounds each wait for a reply on an rtnetlink socket.
const kernelTimeout = 30 * time.Second

// errNoDriver means that the kernel cannot create the link type.
var errNoDriver = errors.New("kernel has no driver for the link type")

// loIndex is the index of lo in every network namespace.
const loIndex = 1

// kernel holds the rtnetlink sockets of one network namespace. It caches no reply of
// the kernel.
type kernel struct {
	links *netlink.Handle
	route map[int]*nl.SocketHandle
}

// openKernel opens the sockets in the namespace that netNS refers to; 0 is the
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
	k := &kernel{links: links, route: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}
	timeout := unix.NsecToTimeval(kernelTimeout.Nanoseconds())
	if err := errors.Join(links.SetSocketTimeout(kernelTimeout), s.SetSendTimeout(&timeout), s.SetReceiveTimeout(&timeout)); err != nil {
		return nil, errors.Join(fmt.Errorf("set timeout of rtnetlink socket: %w", err), k.Close())
	}
	return k, nil
}

func (k *kernel) Close() error {
	k.links.Close()
	for _, s := range k.route {
		s.Close()
	}
	return nil
}

// request returns an rtnetlink request on the namespace's socket.
func (k *kernel) request(msgType, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(msgType, flags)
	req.Sockets = k.route
	return req
}

// link returns nil if no link has that name.
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

// linkName returns the name of a link, or its index if that fails.
func (k *kernel) linkName(index int) string {
	l, err := k.links.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("#%d", index)
	}
	return l.Attrs().Name
}

// createLink succeeds if another process has created a link of that name.
func (k *kernel) createLink(name, kind string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := k.links.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create link %s: type %s: %w", name, kind, errNoDriver)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create link %s: %w", name, err)
	}
	return nil
}

func (k *kernel) setAlias(l netlink.Link, alias string) error {
	if err := k.links.LinkSetAlias(l, alias); err != nil {
		return fmt.Errorf("set alias of link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// bringUp reports whether the link was down.
func (k *kernel) bringUp(l netlink.Link) (changed bool, err error) {
	if isUp(l) {
		return false, nil
	}
	if err := k.links.LinkSetUp(l); err != nil {
		return false, fmt.Errorf("bring link %s up: %w", l.Attrs().Name, err)
	}
	return true, nil
}

// deleteLink succeeds if the link does not exist.
func (k *kernel) deleteLink(l netlink.Link) error {
	err := k.links.LinkDel(l)
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

func isLoopback(l netlink.Link) bool { return l.Attrs().Flags&net.FlagLoopback != 0 }
