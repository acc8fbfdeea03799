package bpf

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Addresses in a pod's namespace. The VIPs are not assigned: packets to them are lost
// unless redirected.
const (
	vip4    = "169.254.20.10:53"
	vip6    = "[fd00:53::10]:53"
	target4 = "10.0.0.2:10053"
	target6 = "[fd00::2]:10053"
	core4   = "10.0.0.3:53"
	core6   = "[fd00::3]:53"
	// A redirected service whose own address answers too.
	cluster4 = "10.96.0.10:53"
	cluster6 = "[fd00:96::10]:53"
)

// pod is a network namespace and a cgroup below kubepods, with servers at the
// target ("target"), the fallback ("core") and the ClusterIP ("cluster").
type pod struct {
	*agent
	ns       *lab.Netns
	kubepods string
	cgroup   string
}

func newPod(t testing.TB) *pod {
	t.Helper()
	lab.NeedBPF(t)
	p := &pod{ns: lab.NewNetns(t, "pod"), kubepods: lab.NewKubepods(t)}
	p.cgroup = lab.MakeCgroup(t, filepath.Join(p.kubepods, "pod"))
	p.ns.AddAddrs(t, "lo", "10.0.0.2/32", "10.0.0.3/32", "10.96.0.10/32", "fd00::2/128", "fd00::3/128", "fd00:96::10/128")
	for addr, name := range map[string]string{target4: "target", target6: "target", core4: "core", core6: "core", cluster4: "cluster", cluster6: "cluster"} {
		serve(t, p.ns, addr, name)
	}
	p.agent = startAgent(t, p.ns, p.cgroup)
	return p
}

// config redirects the VIPs and the cluster IPs.
func (p *pod) config(t testing.TB) RedirectConfig {
	return RedirectConfig{
		Cgroup: p.kubepods,
		PinDir: filepath.Join(lab.BPFFS, t.Name()),
		Services: []Service{
			{VIP: ap(vip4), Target: ap(target4), Fallbacks: []netip.AddrPort{ap(core4)}},
			{VIP: ap(vip6), Target: ap(target6), Fallbacks: []netip.AddrPort{ap(core6)}},
			{VIP: ap(cluster4), Target: ap(target4), PassThrough: true},
			{VIP: ap(cluster6), Target: ap(target6), PassThrough: true},
		},
	}
}

// longTimeout is a heartbeat timeout that is long enough for a slow machine.
const longTimeout = time.Hour

// open opens a Redirect with longTimeout, and tears it down when the test ends.
func open(t testing.TB, cfg RedirectConfig) *Redirect {
	t.Helper()
	t.Cleanup(func() {
		if err := Teardown(cfg.PinDir); err != nil {
			t.Error(err)
		}
	})
	return openBeside(t, cfg)
}

// openBeside is open for a second process: it does not tear down.
func openBeside(t testing.TB, cfg RedirectConfig) *Redirect {
	t.Helper()
	r, err := OpenRedirect(cfg)
	check(t, err)
	r.table.timeout = longTimeout // Alive applies it
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
