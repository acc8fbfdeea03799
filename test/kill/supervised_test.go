package kill

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestSupervised runs a supervisor without redirection. From outside it looks like
// one process even if its workers die. Its PID is in the PID file, it reloads and
// ends on signals, and it leaves nothing on the host.
func TestSupervised(t *testing.T) {
	n := lab.NewNetns(t, "node")
	pidFile := filepath.Join(t.TempDir(), "pid")
	conf := func(answer string) string {
		return "example.org {\n bind " + vip + "\n hosts {\n " + answer + " www.example.org\n }\n}\n"
	}
	running := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n, Corefile: conf("192.0.2.1"),
		Args: []string{"-supervise", "-localip", vip, "-metrics-listen-address", "0", "-kubednscm", "", "-pidfile", pidFile},
	})
	d := &daemon{Process: running.Process}
	expect := func(when, want string) {
		t.Helper()
		got := lab.Data(n.Ask(t, "udp", vip+":53", lab.Query("www.example.org", dns.TypeA)), dns.TypeA)
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", when, got, want)
		}
		text, err := os.ReadFile(pidFile)
		if want := fmt.Sprintln(d.PID()); err != nil || string(text) != want {
			t.Errorf("%s: PID file %q, %v, want %q", when, text, err, want)
		}
	}
	expect("at the start", "192.0.2.1")
	for _, fault := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		mark := d.Out.Mark()
		d.signal(t, fault)
		d.Out.WaitFor(t, mark, " listens on ")
		expect("after "+fault.String(), "192.0.2.1")
	}
	lab.ReplaceFile(t, running.Conf, conf("192.0.2.2"))
	mark := d.Err.Mark()
	d.Signal(t, syscall.SIGHUP)
	d.Err.WaitFor(t, mark, "msg=reloaded")
	expect("after SIGHUP", "192.0.2.2")
	d.stop(t)
	if _, err := os.Stat(pidFile); !os.IsNotExist(err) {
		t.Errorf("after the end the PID file exists: %v", err)
	}
	out, _, _ := lab.Command{Netns: n, Args: []string{"sh", "-c", "ip addr; nft list tables"}}.Output(t)
	if strings.Contains(out, vip) || strings.Contains(out, "nodens") {
		t.Errorf("after the end the host has:\n%s", out)
	}
}
