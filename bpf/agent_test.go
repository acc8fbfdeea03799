package bpf

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
	"golang.org/x/sys/unix"
)

// agent is a process in a pod's network namespace and cgroup. It makes the system
// calls of an application, one at a time.
type agent struct {
	cmd  *exec.Cmd
	in   *json.Encoder
	out  *json.Decoder
	made map[string]int // number of calls by operation
}

// request is one system call on a named socket.
type request struct {
	Op      string // socket, connect, send, write, recv, peer, close; or cgroup
	Socket  string
	Network string // for socket: udp4, udp6, tcp4, tcp6, lit4 for UDP-Lite, mpt4 for multipath TCP
	Addr    netip.AddrPort
	Payload string
	Wait    time.Duration // for socket: the timeout of its calls; 0: answerWait
}

type response struct {
	Payload string
	Addr    netip.AddrPort
	Cgroup  uint64
	Errno   syscall.Errno
	Err     string // an error other than that of the system call
}

// How long the agent waits for a reply, even on a slow machine, and for one that must
// not come.
const (
	answerWait = time.Minute
	lossWait   = 2 * time.Second
)

// startAgent starts a process in ns and in a new cgroup below pods.
func startAgent(t testing.TB, ns *lab.Netns, cgroup string) *agent {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envRole+"=agent",
		"GODEBUG=asyncpreemptoff=1", // no signal interrupts its system calls
		"GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ns.Inside(t, cmd.Start)
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error("agent:", err)
		}
	})
	return &agent{cmd: cmd, in: json.NewEncoder(in), out: json.NewDecoder(out), made: map[string]int{}}
}

// call makes a request. The error of the system call is in the response.
func (a *agent) call(t testing.TB, req request) response {
	t.Helper()
	var resp response
	a.made[req.Op]++
	if err := a.in.Encode(req); err != nil {
		t.Fatal(err)
	}
	if err := a.out.Decode(&resp); err != nil {
		t.Fatal(err)
	}
	if resp.Err != "" {
		t.Fatalf("agent: %+v: %s", req, resp.Err)
	}
	return resp
}

// must makes a request. The system call must succeed.
func (a *agent) must(t testing.TB, req request) response {
	t.Helper()
	resp := a.call(t, req)
	if resp.Errno != 0 {
		t.Fatalf("agent: %+v: %v", req, resp.Errno)
	}
	return resp
}

// agentMain answers requests until its input ends.
func agentMain() {
	dec, enc := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	sockets := map[string]int{}
	for {
		var req request
		if err := dec.Decode(&req); err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "agent:", err)
			}
			return
		}
		resp := perform(sockets, req)
		if err := enc.Encode(resp); err != nil {
			return
		}
	}
}

func perform(sockets map[string]int, req request) (resp response) {
	fd, ok := sockets[req.Socket]
	if !ok && req.Op != "socket" && req.Op != "cgroup" {
		return response{Err: "no such socket"}
	}
	var err error
	switch req.Op {
	case "socket":
		if fd, err = makeSocket(req.Network, cmp.Or(req.Wait, answerWait)); err == nil {
			sockets[req.Socket] = fd
		}
	case "connect":
		err = unix.Connect(fd, sockaddr(fd, req.Addr))
	case "send":
		err = unix.Sendto(fd, []byte(req.Payload), 0, sockaddr(fd, req.Addr))
	case "write":
		_, err = unix.Write(fd, []byte(req.Payload))
	case "recv":
		buf := make([]byte, 2048)
		var n int
		var from unix.Sockaddr
		if n, from, err = unix.Recvfrom(fd, buf, 0); err == nil {
			resp.Payload, resp.Addr = string(buf[:n]), addrPort(from)
		}
	case "peer":
		var peer unix.Sockaddr
		peer, err = unix.Getpeername(fd)
		resp.Addr = addrPort(peer)
	case "cgroup":
		resp.Cgroup, err = currentCgroupID()
	case "close":
		err = unix.Close(fd)
		delete(sockets, req.Socket)
	default:
		return response{Err: "no such operation"}
	}
	if err != nil && !errors.As(err, &resp.Errno) {
		resp.Err = err.Error()
	}
	return resp
}

func makeSocket(network string, wait time.Duration) (int, error) {
	family, kind, proto := unix.AF_INET, unix.SOCK_DGRAM, 0
	if network[3] == '6' {
		family = unix.AF_INET6
	}
	switch network[:3] {
	case "tcp":
		kind = unix.SOCK_STREAM
	case "mpt":
		kind, proto = unix.SOCK_STREAM, unix.IPPROTO_MPTCP
	case "lit":
		proto = unix.IPPROTO_UDPLITE
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(wait.Nanoseconds())
	return fd, errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
	)
}

// sockaddr maps an IPv4 address for an IPv6 socket.
func sockaddr(fd int, ap netip.AddrPort) unix.Sockaddr {
	domain, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: ap.Addr().Unmap().As4(), Port: int(ap.Port())}
	}
	return &unix.SockaddrInet6{Addr: ap.Addr().As16(), Port: int(ap.Port())}
}

// addrPort keeps v4-mapped addresses as they are.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
