package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestPrivilegesAreDropped checks every thread of the running daemon.
func TestPrivilegesAreDropped(t *testing.T) {
	t.Parallel()
	own := status(t, os.Getpid(), "CapPrm")[0]
	const bind, admin = 1 << unix.CAP_NET_BIND_SERVICE, 1 << unix.CAP_NET_ADMIN
	for _, tt := range []struct {
		name string
		args []string
		want uint64
		sure string // NoNewPrivs
	}{
		{"without host setup", nil, bind, "1"},
		{"with host setup", []string{"-localip", localIP}, bind | admin, "1"},
		{"kept", []string{"-keep-privileges"}, own, "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := lab.NewNetns(t, "node")
			d := lab.StartDaemon(t, lab.DaemonOptions{
				Binary: buildStatic.Path(t), Netns: n, Args: tt.args,
				Corefile: ".:1053 {\n bind 127.0.0.1\n whoami\n}",
			})
			for _, field := range []string{"CapEff", "CapPrm"} {
				for _, got := range status(t, d.PID(), field) {
					if got != tt.want {
						t.Errorf("%s of a thread is %#x, want %#x", field, got, tt.want)
					}
				}
			}
			for _, got := range status(t, d.PID(), "NoNewPrivs") {
				if strconv.FormatUint(got, 16) != tt.sure {
					t.Errorf("NoNewPrivs of a thread is %d, want %s", got, tt.sure)
				}
			}
		})
	}
}

// status is a hexadecimal field of each thread's status; see proc(5).
func status(t *testing.T, pid int, field string) (values []uint64) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no threads of %d: %v", pid, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has just ended
		}
		_, after, _ := strings.Cut(string(b), "\n"+field+":")
		word, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
		v, err := strconv.ParseUint(word, 16, 64)
		if err != nil {
			t.Fatalf("%s: %s is %q", f, field, word)
		}
		values = append(values, v)
	}
	return values
}

// TestWorkGoesOnWithoutPrivileges: operations that need privileges still work
// after the start. nodens repairs an address, opens a port below 1024 on reload,
// and restores the host at the end.
func TestWorkGoesOnWithoutPrivileges(t *testing.T) {
	t.Parallel()
	n := lab.NewNetns(t, "node")
	before := hostState(t, n)
	corefile := func(port int) string {
		return fmt.Sprintf(".:%d {\n bind %s\n whoami\n reload 2s\n}", port, localIP)
	}
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: buildStatic.Path(t), Netns: n, Args: []string{"-localip", localIP}, Corefile: corefile(53),
	})
	address := func(change func(*netlink.Addr) error) (found bool) {
		err := n.Do(func() error {
			addrs, err := netlink.AddrList(nil, netlink.FAMILY_V4)
			for _, a := range addrs {
				if a.IP.String() == localIP {
					found = true
					return change(&a)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	look := func(*netlink.Addr) error { return nil }
	mark := d.Err.Mark()
	if !address(func(a *netlink.Addr) error { return netlink.AddrDel(nil, a) }) {
		t.Fatal("the address is not on the host")
	}
	d.Err.WaitFor(t, mark, "drifted, repaired")
	if !address(look) {
		t.Error("the address was not restored")
	}
	mark = d.Err.Mark()
	lab.ReplaceFile(t, d.Conf, corefile(54))
	d.Signal(t, syscall.SIGHUP)
	d.Err.WaitFor(t, mark, "reloaded")
	if r := n.Ask(t, "udp", localIP+":54", lab.Query("x.example.", dns.TypeA)); r.Rcode != dns.RcodeSuccess {
		t.Errorf("on the new port: %v", r)
	}
	d.Signal(t, syscall.SIGTERM)
	if code := d.Wait(t); code != 0 {
		t.Errorf("status %d", code)
	}
	compareState(t, "after the end", before, hostState(t, n))
}
