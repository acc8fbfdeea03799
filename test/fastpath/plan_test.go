package fastpath

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestOptOut: the kernel does not answer a pod whose namespace opts out, nor a pod that
// nodens does not know.
func TestOptOut(t *testing.T) {
	const in, out = "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01", "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e02"
	n := newNode(t, fixed)
	kubepods, logs := lab.NewKubepods(t), t.TempDir()
	for pod, uid := range map[*lab.Netns]string{n.routed: in, n.bridged: out} {
		dir := lab.MakeCgroup(t, filepath.Join(kubepods, "pod"+uid))
		lab.Command{Netns: pod, Cgroup: dir, Args: []string{"sleep", "600"}}.Start(t)
	}
	for _, name := range []string{"team-b_web-0_" + in, "team-a_vpn-0_" + out} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pods := []string{"-kubepods", kubepods, "-pod-logs", logs}
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Corefile: corefileWith("fastpath on {", "opt_out team-a", "}"),
		Args: append([]string{"-keep-privileges"}, pods...),
	})
	n.WaitForMetric(t, metrics, 1, "nodens_kernel_interfaces")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	before := n.answers(t)
	for range 10 {
		n.bridged.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	}
	if got := n.answers(t); got != before || n.programs(t, "veth1") != 0 {
		t.Errorf("the kernel gave %v answers to a pod that opts out", got-before)
	}
	n.statusHas(t, d, pods, "cali1 (team-b/web-0): ", "veth1 (team-a/vpn-0): nodens answers; the pod opts out")
	// After the pod has lost the name, the kernel answers it.
	if err := os.Rename(filepath.Join(logs, "team-a_vpn-0_"+out), filepath.Join(logs, "team-b_vpn-0_"+out)); err != nil {
		t.Fatal(err)
	}
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	n.warm(t, n.bridged, vip4+":53", "name.example.")
	d.CheckLog(t)
}

// TestReloads: nodens refuses a reload if its memory does not suffice for the tables, and
// keeps the previous configuration. A reload may turn the fast path off and on again.
func TestReloads(t *testing.T) {
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on {", "entries 1024", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	reload := func(want string, options ...string) {
		t.Helper()
		mark := d.Err.Mark()
		lab.ReplaceFile(t, d.Conf, corefileWith(options...))
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, want)
	}
	reload("restart nodens", "fastpath on {", "entries 2048", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	reload("msg=reloaded", "# off")
	if n.programs(t, "cali1")+n.programs(t, "veth1") != 0 {
		t.Error("the program is left after the fast path was turned off")
	}
	n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	reload("msg=reloaded", "fastpath on {", "entries 1024", "}")
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	n.warm(t, n.routed, vip4+":53", "name.example.")
}

// TestPodsComeAndGo: the program follows pods' interfaces.
func TestPodsComeAndGo(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on")
	late := n.addRouted(t, 2)
	n.WaitForMetric(t, metrics, 3, "nodens_kernel_interfaces")
	n.warm(t, late, vip4+":53", "name.example.")
	n.SetLink(t, "cali2", false)
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
}

// TestSmallNode: if the tables do not fit into the cache's memory, nodens logs that and
// answers all queries itself.
func TestSmallNode(t *testing.T) {
	n := newNode(t, fixed)
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Corefile: corefileWith("fastpath on {", "entries 65536", "}"),
		Args: []string{"-keep-privileges", "-cache-size", "8Mi"},
	})
	d.Err.WaitFor(t, 0, "lower the option entries")
	n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	n.statusHas(t, d, nil, "nodens answers all queries: it has not loaded the program")
}

// TestAllAddresses: nodens logs that the kernel does not answer for a listener on all
// addresses.
func TestAllAddresses(t *testing.T) {
	n := newNode(t, fixed)
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Args: []string{"-keep-privileges"},
		Corefile: strings.Replace(corefileWith("fastpath on"), "bind "+vip4+" "+vip6, "", 1),
	})
	d.Err.WaitFor(t, 0, "nodens listens on all addresses")
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	for range 10 {
		n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	}
	if got := n.answers(t); got != 0 {
		t.Errorf("the kernel gave %v answers", got)
	}
	n.statusHas(t, d, nil, "cali1: no lease")
}
