package fastpath

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

const routedUID, bridgedUID = "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01", "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e02"

// podNames names the routed pod team-b/web-0 and the bridged pod team-a/vpn-0. It returns the flags with which nodens finds them, and the directory of logs.
func (n *node) podNames(t *testing.T) (args []string, logs string) {
	t.Helper()
	kubepods, logs := lab.NewKubepods(t), t.TempDir()
	for pod, uid := range map[*lab.Netns]string{n.routed: routedUID, n.bridged: bridgedUID} {
		dir := lab.MakeCgroup(t, filepath.Join(kubepods, "pod"+uid))
		lab.Command{Netns: pod, Cgroup: dir, Args: []string{"sleep", "600"}}.Start(t)
	}
	for _, name := range []string{"team-b_web-0_" + routedUID, "team-a_vpn-0_" + bridgedUID} {
		if err := os.Mkdir(filepath.Join(logs, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"-kubepods", kubepods, "-pod-logs", logs}, logs
}

// TestOptOut: the kernel does not answer a pod whose namespace opts out, nor a pod that
// nodens does not know.
func TestOptOut(t *testing.T) {
	n := newNode(t, fixed)
	pods, logs := n.podNames(t)
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
	doctor := append([]string{nodens.Path(t), "doctor", "-o", "json", "-wait", "1s", "-pod", bridgedUID, "-conf", d.Conf}, pods...)
	out, errs, _ := lab.Command{Netns: n.Netns, Args: doctor}.Output(t)
	if strings.Contains(out, "fastpath: cali1") || !strings.Contains(out, "fastpath: veth1 (team-a/vpn-0): nodens answers; the pod opts out") {
		t.Errorf("doctor for the pod on veth1:\n%s%s", out, errs)
	}
	// After the pod has lost the name, the kernel answers it.
	if err := os.Rename(filepath.Join(logs, "team-a_vpn-0_"+bridgedUID), filepath.Join(logs, "team-b_vpn-0_"+bridgedUID)); err != nil {
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
	reload(t, d, "restart nodens", "fastpath on {", "entries 2048", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	reload(t, d, "msg=reloaded", "# off")
	if n.programs(t, "cali1")+n.programs(t, "veth1") != 0 {
		t.Error("the program is left after the fast path was turned off")
	}
	n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	reload(t, d, "msg=reloaded", "fastpath on {", "entries 1024", "}")
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	n.warm(t, n.routed, vip4+":53", "name.example.")
}

// reload reloads d with lines added to its server block, and waits for a log line.
func reload(t *testing.T, d *lab.Daemon, want string, options ...string) {
	t.Helper()
	mark := d.Err.Mark()
	lab.ReplaceFile(t, d.Conf, corefileWith(options...))
	d.Signal(t, syscall.SIGHUP)
	d.Err.WaitFor(t, mark, want)
}

// TestReloadsWithoutPrivileges: reloads change each option although nodens has only
// NET_ADMIN left, with which it could not load the program.
func TestReloadsWithoutPrivileges(t *testing.T) {
	n := newNode(t, fixed)
	args, _ := n.podNames(t)
	d := lab.StartDaemon(t, lab.DaemonOptions{
		Binary: release.Path(t), Netns: n.Netns, Corefile: corefileWith("fastpath on {", "lease 30s", "}"), Args: args,
	})
	d.Err.WaitFor(t, 0, `privileges dropped" capabilities=NET_ADMIN,NET_BIND_SERVICE`)
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	for _, pod := range []*lab.Netns{n.routed, n.bridged} {
		n.warm(t, pod, vip4+":53", "name.example.")
	}
	reload(t, d, "msg=reloaded", "fastpath on {", "lease 1s", "entries 1024", "}")
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	n.leasesEnd(t, 8, 80*time.Second) // leases of 30 s would end twice

	reload(t, d, "msg=reloaded", "fastpath on {", "opt_out team-a", "}")
	n.WaitForMetric(t, metrics, 1, "nodens_kernel_interfaces")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	if n.programs(t, "cali1") != 1 || n.programs(t, "veth1") != 0 {
		t.Error("the program is missing on cali1, or is on veth1")
	}
	reload(t, d, "msg=reloaded", "fastpath off")
	before := n.answers(t)
	for range 10 {
		n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
	}
	if got := n.answers(t); got != before || n.programs(t, "cali1") != 0 {
		t.Errorf("the kernel gave %v answers after the fast path was turned off", got-before)
	}
	reload(t, d, "msg=reloaded", "fastpath on")
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	for _, pod := range []*lab.Netns{n.routed, n.bridged} {
		n.warm(t, pod, vip4+":53", "name.example.")
	}
	if got := n.answers(t); got <= before {
		t.Errorf("%v answers of the kernel, %v before the fast path was turned off", got, before)
	}
}

// leasesEnd sends queries from the routed pod until its leases have ended the given number of times.
func (n *node) leasesEnd(t *testing.T, times float64, within time.Duration) {
	t.Helper()
	ended := func() float64 {
		sum, _ := n.Scrape(t, metrics).Sum("nodens_kernel_passed_total", "reason=no_lease")
		return sum
	}
	late, before := time.Now().Add(within), ended()
	for ended() < before+times {
		n.warm(t, n.routed, vip4+":53", "name.example.")
		if time.Now().After(late) {
			t.Fatalf("leases ended %v times", ended()-before)
		}
	}
}

// TestNoPrivilege: without the capability BPF nodens logs one line and answers itself.
// The tables take nothing from the cache.
func TestNoPrivilege(t *testing.T) {
	for mode, level := range map[string]string{"on": "ERROR", "auto": "INFO"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, fixed)
			d := lab.StartDaemon(t, lab.DaemonOptions{
				Binary: lab.WriteScript(t, `exec setpriv --bounding-set=-bpf,-sys_admin `+release.Path(t)+` "$@"`),
				Netns:  n.Netns, Corefile: corefileWith("fastpath " + mode), Args: []string{"-cache-size", "16Mi"},
			})
			d.Err.WaitFor(t, 0, "privileges dropped")
			for range 10 {
				n.routed.Ask(t, "udp", vip4+":53", lab.Query("name.example.", dns.TypeA))
			}
			reload(t, d, "msg=reloaded", "fastpath "+mode, "# nothing else")
			if lines := strings.Count(d.Err.Text(), "the kernel answers no queries"); lines != 1 {
				t.Errorf("%d log lines, want one:\n%s", lines, d.Err.Text())
			}
			if want := "level=" + level + ` msg="the kernel answers no queries; nodens answers all of them"`; !strings.Contains(d.Err.Text(), want) {
				t.Errorf("the log lacks %q:\n%s", want, d.Err.Text())
			}
			m := n.Scrape(t, metrics)
			if _, present := m.Sum("nodens_kernel_interfaces"); present {
				t.Error("there are metrics of the kernel")
			}
			if budget, _ := m.Sum("nodens_cache_budget_bytes"); budget != 16<<20 {
				t.Errorf("the cache has %v bytes", budget)
			}
		})
	}
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
