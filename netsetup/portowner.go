package netsetup

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// PortOwner is a process that has a socket on a port.
type PortOwner struct {
	Network string // "udp" or "tcp"
	Local   netip.AddrPort
	PID     int    // 0: not visible, as from a container without the host's PID namespace
	Comm    string // name of the process
}

func (o PortOwner) String() string {
	if o.PID == 0 {
		return fmt.Sprintf("%s %s is held by a process that is not visible from here", o.Network, o.Local)
	}
	return fmt.Sprintf("%s %s is held by %s (pid %d)", o.Network, o.Local, o.Comm, o.PID)
}

// tcpListen is TCP_LISTEN in /proc/net/tcp.
const tcpListen = "0A"

// PortOwners finds the processes whose sockets prevent another process from
// listening on port of addrs. These sockets are bound to one of addrs or to the
// wildcard address. procfs is where proc is mounted. It reads the caller's network
// namespace.
func PortOwners(procfs string, port uint16, addrs ...netip.Addr) ([]PortOwner, error) {
	var found []boundSocket
	for _, network := range []string{"udp", "tcp"} {
		for _, suffix := range []string{"", "6"} {
			sockets, err := readSockets(filepath.Join(procfs, "thread-self", "net", network+suffix), network)
			if errors.Is(err, fs.ErrNotExist) { // no IPv6
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("find owner of port %d: %w", port, err)
			}
			found = append(found, slices.DeleteFunc(sockets, func(s boundSocket) bool { return !s.conflicts(port, addrs) })...)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	owners := socketOwners(procfs, found)
	result := make([]PortOwner, len(found))
	for i, s := range found {
		result[i] = PortOwner{Network: s.network, Local: s.local}
		if pid := owners[s.inode]; pid != 0 {
			result[i].PID, result[i].Comm = pid, comm(procfs, pid)
		}
	}
	return result, nil
}

// boundSocket is a line of /proc/net/{udp,tcp}{,6}.
type boundSocket struct {
	network string
	local   netip.AddrPort
	inode   string
}

func (s boundSocket) conflicts(port uint16, addrs []netip.Addr) bool {
	ip := s.local.Addr()
	return s.local.Port() == port && (ip.IsUnspecified() || slices.Contains(addrs, ip))
}

// readSockets leaves out TCP sockets that do not listen.
func readSockets(path, network string) ([]boundSocket, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []boundSocket
	lines := bufio.NewScanner(f)
	lines.Scan() // the header
	for lines.Scan() {
		// sl local_address rem_address st queues timer retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 {
			return nil, fmt.Errorf("%s: line of %d fields", path, len(fields))
		}
		if network == "tcp" && fields[3] != tcpListen {
			continue
		}
		local, err := parseProcAddrPort(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, boundSocket{network: network, local: local, inode: fields[9]})
	}
	return out, lines.Err()
}

// parseProcAddrPort parses ADDRESS:PORT. Both are hexadecimal; the address is in
// 32-bit words of host byte order.
func parseProcAddrPort(s string) (netip.AddrPort, error) {
	ipHex, portHex, _ := strings.Cut(s, ":")
	b, errIP := hex.DecodeString(ipHex)
	port, errPort := strconv.ParseUint(portHex, 16, 16)
	if errIP != nil || errPort != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("local address %q: not HEX:HEX", s)
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}

// socketOwners maps inodes to the visible processes that have them open. It
// leaves out a process that ends meanwhile.
func socketOwners(procfs string, sockets []boundSocket) map[string]int {
	owners := make(map[string]int)
	links, _ := filepath.Glob(filepath.Join(procfs, "[0-9]*", "fd", "*")) // the pattern is valid
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		inode := strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")
		if !slices.ContainsFunc(sockets, func(s boundSocket) bool { return s.inode == inode }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil {
			owners[inode] = pid
		}
	}
	return owners
}

func comm(procfs string, pid int) string {
	b, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
