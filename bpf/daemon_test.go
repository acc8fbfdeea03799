package bpf

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// daemon is a process to which sockets are redirected. The test can kill it.
type daemon struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

type daemonConfig struct {
	Redirect RedirectConfig
	Timeout  time.Duration    // of the heartbeat; OpenRedirect would refuse it
	Name     string           // in its answers
	Serve    []netip.AddrPort // in the namespace given as file descriptor 3
}

const envDaemon = "NODENS_BPF_TEST_DAEMON"

// startDaemon returns when the daemon is alive. It runs in the namespace home (nil:
// that of the test) and serves in the namespace serves. wrapper is a program that
// starts it, with arguments.
func startDaemon(t testing.TB, home, serves *lab.Netns, cfg daemonConfig, wrapper ...string) *daemon {
	t.Helper()
	text, err := json.Marshal(cfg)
	check(t, err)
	args := append(wrapper, "/proc/self/exe")
	if len(wrapper) > 0 {
		args[len(wrapper)], err = os.Executable()
		check(t, err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), envRole+"=daemon", envDaemon+"="+string(text), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{serves.File()}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	if home == nil {
		err = cmd.Start()
	} else {
		home.Inside(t, cmd.Start)
	}
	check(t, err)
	d := &daemon{cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() { d.kill(t) })
	d.says(t, "alive")
	return d
}

func (d *daemon) says(t testing.TB, want string) {
	t.Helper()
	if line, err := d.out.ReadString('\n'); line != want+"\n" {
		t.Fatalf("daemon says %q, %v, want %q", line, err, want)
	}
}

// withdraw makes it withdraw. It still answers.
func (d *daemon) withdraw(t testing.TB) {
	t.Helper()
	_, err := d.in.Write([]byte("withdraw\n"))
	check(t, err)
	d.says(t, "withdrawn")
}

// kill kills it and waits.
func (d *daemon) kill(t testing.TB) {
	t.Helper()
	if d.cmd.ProcessState != nil {
		return
	}
	check(t, d.cmd.Process.Kill())
	_ = d.cmd.Wait() // the error is "killed"
}

func (d *daemon) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	check(t, d.cmd.Process.Signal(sig))
}

// stop ends it normally and waits.
func (d *daemon) stop(t testing.TB) {
	t.Helper()
	check(t, d.in.Close())
	check(t, d.cmd.Wait())
}

func daemonMain() {
	if err := runDaemon(); err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func runDaemon() error {
	var cfg daemonConfig
	if err := json.Unmarshal([]byte(os.Getenv(envDaemon)), &cfg); err != nil {
		return err
	}
	r, err := OpenRedirect(cfg.Redirect)
	if err != nil {
		return err
	}
	r.table.timeout = cfg.Timeout
	probe, err := serveInDescriptor3(cfg)
	if err != nil {
		return err
	}
	if err := r.Attach(); err != nil {
		return err
	}
	if err := r.Alive(); err != nil {
		return err
	}
	go beatBySelfQuery(r, probe)
	fmt.Println("alive")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := r.Withdraw(); err != nil {
			return err
		}
		fmt.Println("withdrawn")
	}
	return r.Close()
}

// serveInDescriptor3 serves until the process ends. It returns a socket that is
// connected to the first address, for the daemon's own queries.
func serveInDescriptor3(cfg daemonConfig) (probe *net.UDPConn, err error) {
	err = lab.NetnsOf(os.NewFile(3, "descriptor 3")).Do(func() error {
		for _, addr := range cfg.Serve {
			udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
			if err != nil {
				return err
			}
			tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
			if err != nil {
				return err
			}
			answer(udp, tcp, cfg.Name)
		}
		var err error
		probe, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(cfg.Serve[0]))
		return err
	})
	return probe, err
}

// beatBySelfQuery sends heartbeats after answers to its own queries.
func beatBySelfQuery(r *Redirect, probe *net.UDPConn) {
	buf := make([]byte, 64)
	for range time.Tick(50 * time.Millisecond) {
		if _, err := probe.Write([]byte("beat")); err != nil {
			continue
		}
		if _, err := probe.Read(buf); err == nil {
			_, _ = r.Beat(0)
		}
	}
}

// waitAlive polls the state that the programs see: a stopped or killed process sends
// no signal.
func waitAlive(t testing.TB, r *Redirect, want bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		_, alive, err := r.state()
		r.mu.Unlock()
		check(t, err)
		if alive == want {
			return
		}
	}
	t.Fatalf("alive did not become %v", want)
}
