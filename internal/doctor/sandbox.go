package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// isSandboxed reports whether a sandbox such as gVisor's has taken over a pod's link: the
// network namespace has no global address, but has a packet socket (packet(7)), by which
// the sandbox's own network stack sends.
func (proc procfs) isSandboxed(at place) (sandboxed bool) {
	err := at.do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil || slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.IsGlobalUnicast() }) {
			return err
		}
		sockets, err := os.ReadFile(filepath.Join(string(proc), "thread-self/net/packet"))
		sandboxed = strings.Count(string(sockets), "\n") > 1 // the first line is the head
		return err
	})
	return err == nil && sandboxed
}
