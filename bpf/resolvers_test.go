package bpf

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	glibcLookup = lab.Glibc("lookup")
	muslLookup  = lab.Musl("lookup")
)

// resolvers returns shell commands of real DNS clients, which print the address of a
// name. Those of a libc use the options of resolv.conf.
func resolvers(t *testing.T) map[string]func(options string) string {
	t.Helper()
	lab.NeedTools(t, "dig", "gcc", "musl-gcc", "unshare")
	dig := func(options string) func(string) string {
		return func(string) string {
			return "dig +short +tries=1 +time=10 " + options + " @169.254.20.10 node.example A"
		}
	}
	commands := map[string]func(string) string{"dig": dig(""), "dig TCP": dig("+tcp")}
	for libc, program := range map[string]*lab.Program{"glibc": glibcLookup, "musl": muslLookup} {
		bin := program.Path(t)
		commands[libc] = func(options string) string {
			conf := filepath.Join(t.TempDir(), "resolv.conf")
			check(t, os.WriteFile(conf, []byte("nameserver 169.254.20.10\noptions "+options+"\n"), 0o644))
			return "mount --bind " + conf + " /etc/resolv.conf && " + bin + " -4 node.example | cut -d ' ' -f 3-"
		}
	}
	return commands
}

// shell starts a command in the pod. The returned function waits for its output.
func (p *pod) shell(t *testing.T, text string) (wait func() string) {
	t.Helper()
	dir, err := os.Open(p.cgroup)
	check(t, err)
	defer dir.Close()
	var out strings.Builder
	cmd := exec.Command("unshare", "-m", "sh", "-c", text)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	p.ns.Inside(t, cmd.Start)
	return func() string {
		_ = cmd.Wait() // the output has the reason
		return strings.TrimSpace(out.String())
	}
}

const (
	fromDaemon = "192.0.2.1" // see serverAddrs
	fromCore   = "192.0.2.2"
)

// dig and the resolvers of glibc and musl in a pod, with routing mode M1, which drops
// packets to the VIP.
func TestRealResolvers(t *testing.T) {
	commands := resolvers(t)
	l := newLab(t, lab.RouteFIB)
	run := func(want string) {
		t.Helper()
		for name, command := range commands {
			if got := l.shell(t, command("timeout:10"))(); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	run(fromDaemon)
	l.daemon.kill(t)
	run(fromCore)
	l.daemon = startDaemon(t, l.Node, l.Node, l.cfg)
	run(fromDaemon)
}

// A lookup whose query was lost with the daemon: musl retries from the same unconnected
// socket; glibc keeps its connected socket until it is destroyed. The daemon must be
// killed before the first retry: glibc's comes after the timeout, musl's after half
// of it.
func TestLookupInFlight(t *testing.T) {
	commands := resolvers(t)
	for _, tc := range []struct {
		libc    string
		destroy bool
		options string
		want    string
	}{
		{"musl", false, "timeout:8 attempts:2", fromCore},
		{"musl", true, "timeout:8 attempts:2", fromCore},
		{"glibc", true, "timeout:30 attempts:2", fromCore},
		{"glibc", false, "timeout:1 attempts:2", "EAI_AGAIN"}, // a control
	} {
		name := tc.libc
		if tc.destroy {
			name += ", destroyed"
		}
		t.Run(name, func(t *testing.T) {
			p := newPod(t)
			p.ns.AddAddrs(t, "lo", "10.0.0.4/32")
			arrived := p.silent(t, ap("10.0.0.4:10053"))
			cfg := p.config(t)
			cfg.PinDir = filepath.Join(lab.BPFFS, "in-flight")
			cfg.Services[0].Target, cfg.Services[2].Target = ap("10.0.0.4:10053"), ap("10.0.0.4:10053")
			r := open(t, cfg)
			check(t, r.Attach())
			check(t, r.Alive())
			wait := p.shell(t, commands[tc.libc](tc.options))
			<-arrived
			check(t, r.Withdraw())
			if tc.destroy {
				_, err := DestroyPodSockets(p.kubepods, "/proc", ap("10.0.0.4:10053"), UDP)
				check(t, err)
			}
			if got := wait(); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// silent never answers. The channel is closed at the first query.
func (p *pod) silent(t *testing.T, addr netip.AddrPort) <-chan struct{} {
	t.Helper()
	var udp *net.UDPConn
	p.ns.Inside(t, func() (err error) {
		udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	})
	arrived, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		if _, err := udp.Read(buf); err == nil {
			close(arrived)
		}
		for {
			if _, err := udp.Read(buf); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = udp.Close()
		<-done
	})
	return arrived
}
