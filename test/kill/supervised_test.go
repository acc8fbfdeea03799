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

// TestWorkerDiesWithBadCorefile kills workers while the Corefile has an error. The next
// worker uses the configuration of the one before, and follows the Corefile.
func TestWorkerDiesWithBadCorefile(t *testing.T) {
	const metrics = vip + ":9253"
	n := lab.NewNetns(t, "node")
	imported := filepath.Join(t.TempDir(), "hosts")
	hosts := func(answer string) string { return "hosts {\n " + answer + " www.example.org\n}\n" }
	lab.WriteFile(t, imported, hosts("192.0.2.1"))
	running := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n,
		Corefile: "example.org {\n bind " + vip + "\n reload 1m\n prometheus " + metrics + "\n import " + imported + "\n}\n",
		Args:     []string{"-supervise", "-localip", vip, "-metrics-listen-address", "0", "-kubednscm", ""},
	})
	d := &daemon{Process: running.Process}
	expect := func(when, want string, ok float64) {
		t.Helper()
		got := lab.Data(n.Ask(t, "udp", vip+":53", lab.Query("www.example.org", dns.TypeA)), dns.TypeA)
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, want %s", when, got, want)
		}
		n.WaitForMetric(t, metrics, ok, "nodens_config_last_reload_successful")
	}
	mark := d.Err.Mark()
	lab.ReplaceFile(t, imported, "no_such_directive\n")
	d.Err.WaitFor(t, mark, "reload failed")
	for _, fault := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		out, log := d.Out.Mark(), d.Err.Mark()
		d.signal(t, fault)
		d.Out.WaitFor(t, out, " listens on ")
		d.Err.WaitFor(t, log, "reload failed.*no_such_directive")
		expect("after "+fault.String(), "192.0.2.1", 0)
	}
	mark = d.Err.Mark()
	lab.ReplaceFile(t, imported, hosts("192.0.2.2"))
	d.Err.WaitFor(t, mark, "msg=reloaded")
	expect("after a good change", "192.0.2.2", 1)
	d.stop(t)
}
