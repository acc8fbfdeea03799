package netsetup

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// parseIfAddr reads the payload of an RTM_NEWADDR message. The prefix is not
// valid for a family other than IPv4 and IPv6. Integers are in host order.
func parseIfAddr(m []byte) (ifAddr, error) {
	if len(m) < unix.SizeofIfAddrmsg {
		return ifAddr{}, fmt.Errorf("address message of %d bytes", len(m))
	}
	family, length, scope := m[0], m[1], m[3] // struct ifaddrmsg
	attrs, err := netlink.UnmarshalAttributes(m[unix.SizeofIfAddrmsg:])
	if err != nil {
		return ifAddr{}, fmt.Errorf("address message: %w", err)
	}
	a := ifAddr{link: int(hostUint32(m, 4)), scope: scope, flags: uint32(m[2]), valid: forever}
	var local, remote netip.Addr
	for _, attr := range attrs {
		v := attr.Data
		switch attrType(attr) {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			remote, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.flags = hostUint32(v, 0)
		case unix.IFA_RT_PRIORITY:
			a.mark = addrMark(hostUint32(v, 0))
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

// hostUint32 reads at offset off; a short attribute reads as 0.
func hostUint32(b []byte, off int) uint32 {
	if len(b) < off+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b[off:])
}
