package netsetup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// forever is the kernel's infinite lifetime, in seconds.
const forever = math.MaxUint32

// ifAddr is an address as the kernel has it.
type ifAddr struct {
	prefix netip.Prefix // the address with its prefix length, not masked
	link   int          // index
	scope  uint8        // unix.RT_SCOPE_…
	flags  uint32       // unix.IFA_F_…
	valid  uint32       // seconds
	mark   owner.Mark   // the route metric
}

// usable reports whether the address is as Addresses.Ensure makes it. It ignores
// the mark and the link.
func (a ifAddr) usable() bool {
	const broken = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	return a.prefix.IsSingleIP() && a.scope == unix.RT_SCOPE_UNIVERSE &&
		a.flags&broken == 0 && a.valid == forever
}

// addrs reads every address of the namespace.
func (k *kernel) addrs() ([]ifAddr, error) {
	msgs, err := dump(func() ([][]byte, error) {
		req := k.request(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	})
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	var out []ifAddr
	for _, m := range msgs {
		a, err := parseIfAddr(m)
		if err != nil {
			return nil, fmt.Errorf("read addresses: %w", err)
		}
		if a.prefix.IsValid() {
			out = append(out, a)
		}
	}
	return out, nil
}

// dump repeats a read that a concurrent change made inconsistent, at most 8
// times: links of pods come and go at any time.
func dump[T any](read func() ([]T, error)) (all []T, err error) {
	for range 8 {
		if all, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// parseIfAddr parses the payload of an RTM_NEWADDR message. The prefix is not
// valid for a family other than IPv4 and IPv6. Integers are in host order.
func parseIfAddr(m []byte) (ifAddr, error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return ifAddr{}, fmt.Errorf("address message of %d bytes", len(m))
	}
	family, length, scope := m[0], m[1], m[3] // struct ifaddrmsg
	attrs, err := mdlayher.UnmarshalAttributes(m[unix.SizeofIfAddrmsg:])
	if err != nil {
		return ifAddr{}, fmt.Errorf("address message: %w", err)
	}
	a := ifAddr{link: int(hostUint32(m, 4)), scope: scope, flags: uint32(m[2]), valid: forever}
	var local, remote netip.Addr
	for _, attr := range attrs {
		v := attr.Data
		switch nft.AttrType(attr) {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			remote, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.flags = hostUint32(v, 0)
		case unix.IFA_RT_PRIORITY:
			a.mark = owner.Mark(hostUint32(v, 0))
		case unix.IFA_CACHEINFO: // preferred, valid, created, updated
			a.valid = hostUint32(v, 4)
		}
	}
	if !local.IsValid() { // IPv6 without a peer
		local = remote
	}
	if family == unix.AF_INET || family == unix.AF_INET6 {
		a.prefix = netip.PrefixFrom(local, int(length))
	}
	return a, nil
}

// hostUint32 reads an integer at offset off. It returns 0 if b is too short.
func hostUint32(b []byte, off int) uint32 {
	if len(b) < off+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b[off:])
}

// putAddr adds the address or replaces its flags, lifetimes and mark. With
// another prefix length or scope it is a second address: delete the first one
// before.
func (k *kernel) putAddr(a ifAddr) error {
	req := k.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	addrBody(req, a)
	flags := binary.NativeEndian.AppendUint32(nil, a.flags)
	req.AddData(nl.NewRtAttr(unix.IFA_FLAGS, flags))
	if a.mark != 0 {
		req.AddData(nl.NewRtAttr(unix.IFA_RT_PRIORITY, binary.NativeEndian.AppendUint32(nil, uint32(a.mark))))
	}
	life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: forever, Valid: forever}}
	req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EACCES) && a.prefix.Addr().Is6() {
		name := k.linkName(a.link)
		return fmt.Errorf("add address %s to link %s: IPv6 is disabled there (sysctl net.ipv6.conf.%s.disable_ipv6 is 1)", a.prefix, name, name)
	}
	if err != nil {
		return fmt.Errorf("add address %s to link %s: %w", a.prefix, k.linkName(a.link), err)
	}
	return nil
}

// deleteAddr succeeds if the address does not exist.
func (k *kernel) deleteAddr(a ifAddr) error {
	req := k.request(unix.RTM_DELADDR, unix.NLM_F_ACK)
	addrBody(req, a)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove address %s from link %s: %w", a.prefix, k.linkName(a.link), err)
	}
	return nil
}

// addrBody adds the attributes that identify an address.
func addrBody(req *nl.NetlinkRequest, a ifAddr) {
	family := unix.AF_INET
	if a.prefix.Addr().Is6() {
		family = unix.AF_INET6
	}
	head := nl.NewIfAddrmsg(family)
	head.Index = uint32(a.link)
	head.Prefixlen = uint8(a.prefix.Bits())
	head.Scope = a.scope
	req.AddData(head)
	ip := a.prefix.Addr().AsSlice()
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
}
