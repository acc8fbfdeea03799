// Package migrate starts nodens from a migrated manifest beside node-cache with the
// original one.
package migrate

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(lab.Main(m))
}

// nodens is built with the race detector where that works.
var nodens = lab.RaceNodens()

// manifest has the fields of a DaemonSet or a ConfigMap that the test needs.
type manifest struct {
	Kind string
	Data map[string]string
	Spec struct {
		Template struct {
			Spec struct{ Containers []struct{ Args []string } }
		}
	}
}

// read returns the arguments and the Corefile of a manifest.
func read(t *testing.T, text string) (args []string, corefile string) {
	t.Helper()
	for dec := yaml.NewDecoder(strings.NewReader(text)); ; {
		var m manifest
		if dec.Decode(&m) != nil {
			break
		}
		switch m.Kind {
		case "ConfigMap":
			corefile = m.Data["Corefile"]
		case "DaemonSet":
			args = m.Spec.Template.Spec.Containers[0].Args
		}
	}
	if len(args) == 0 || corefile == "" {
		t.Fatalf("no arguments or no Corefile in\n%s", text)
	}
	return args, corefile
}

const (
	input   = "../../cmd/nodens/testdata/migrate/kubespray.yaml"
	localIP = "169.254.25.10"
	hostIP  = "127.0.0.1" // set by the kubelet
)

// TestFirstRollOut starts nodens from the migrated manifest on a node where CoreDNS,
// with the ports of node-cache, still serves. They share the ports, and nodens
// continues alone. With the original flags, nodens starts without the port of
// node-cache's own metrics.
func TestFirstRollOut(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "unshare")
	bin := nodens.Path(t)
	before, err := os.ReadFile(input)
	if err != nil {
		t.Fatal(err)
	}
	n := lab.NewNetns(t, "node", localIP+"/32")
	oldArgs, oldCorefile := read(t, string(before))
	after, _, status := lab.Command{Netns: n, Args: []string{bin, "migrate", "-image", "example.org/nodens:v1", input}}.Output(t)
	if status != 0 {
		t.Fatalf("migrate: status %d", status)
	}
	args, corefile := read(t, after)

	old := nodeCache(t, n, oldCorefile)
	asBefore := command(t, n, bin, oldArgs, corefile).Start(t)
	asBefore.Err.WaitFor(t, 0, `an address is not available.*:9353 `)
	asBefore.Out.WaitFor(t, 0, ` listens on `)
	asBefore.Signal(t, syscall.SIGTERM)
	asBefore.Wait(t)
	d := &lab.Daemon{Netns: n, Process: command(t, n, bin, args, corefile).Start(t)}
	t.Cleanup(func() { d.Kill(); d.CheckLog(t) })
	d.Out.WaitFor(t, 0, ` listens on .*`+regexp.QuoteMeta(localIP)+`:53`)
	old.Kill()
	for _, network := range []string{"udp", "tcp"} {
		q := lab.Query("id.server.", dns.TypeTXT)
		q.Question[0].Qclass = dns.ClassCHAOS
		if txt := lab.Data(n.Ask(t, network, localIP+":53", q), dns.TypeTXT); len(txt) != 1 || !strings.HasPrefix(txt[0], `"nodens `) {
			t.Errorf("%s: %q", network, txt)
		}
	}
	if status, body := n.Get(t, localIP+":8181", "/ready"); status != http.StatusOK {
		t.Errorf("/ready: %d %q", status, body)
	}
}

// nodeCache serves the Corefile with CoreDNS. It also listens on the port of
// node-cache's own metrics without SO_REUSEPORT, as node-cache does.
func nodeCache(t *testing.T, n *lab.Netns, corefile string) *lab.Process {
	t.Helper()
	n.Listen(t, "tcp", "0.0.0.0:9353")
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), corefile)
	p := lab.Command{Netns: n, Args: []string{lab.CoreDNS(t), "-conf", file}, Env: []string{"MY_HOST_IP=" + hostIP}}.Start(t)
	p.Out.WaitFor(t, 0, `linux/`) // the banner, which CoreDNS prints once it listens
	return p
}

// command returns nodens with its Corefile at the path in the pod.
func command(t *testing.T, n *lab.Netns, bin string, args []string, corefile string) lab.Command {
	t.Helper()
	etc := t.TempDir()
	if err := os.Mkdir(filepath.Join(etc, "coredns"), 0o755); err != nil {
		t.Fatal(err)
	}
	lab.WriteFile(t, filepath.Join(etc, "coredns", "Corefile.base"), corefile)
	lab.WriteFile(t, filepath.Join(etc, "resolv.conf"), "nameserver 192.0.2.1\n")
	return lab.Command{Netns: n, Args: append([]string{bin}, args...), Env: []string{"MY_HOST_IP=" + hostIP}, Binds: map[string]string{"/etc": etc}}
}
