package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/internal/lab"
)

// redirectTarget is the target of redirection.
const redirectTarget = lab.NodeIP + ":20053"

// cniWorld is a world whose CNI routes as Cilium does.
func cniWorld(t *testing.T, mode lab.CNIMode) (w *world, flags []string) {
	t.Helper()
	lab.NeedTools(t, "ip", "nft", "unshare")
	n := lab.NewCNINode(t, mode, localIP)
	w = &world{node: n.Node, pod: n.Pod, ext: n.Outside, etc: t.TempDir(), podCgroup: n.PodCgroup}
	w.write(t, "resolv.conf", "nameserver "+lab.ClusterDNS+"\n")
	w.write(t, "Corefile", strings.ReplaceAll(corefile, clusterDNS, lab.Endpoint))
	w.startPod(t, "nameserver "+localIP+"\nsearch default.svc.cluster.local\n")
	pinDir := filepath.Join(lab.BPFFS, strings.ReplaceAll(t.Name(), "/", "_"))
	flags = []string{"-kubepods", n.Kubepods, "-redirect-pin-dir", pinDir}
	w.redirectFlags = flags
	t.Cleanup(func() {
		output(t, n.Node, nodens.Path(t), "teardown", "-localip", localIP, "-redirect-pin-dir", pinDir)
	})
	return w, flags
}

// redirect adds a redirect directive to the Corefile of the daemon and of doctor.
func (w *world) redirect(t *testing.T, mode string, options ...string) {
	t.Helper()
	directive := "    redirect " + mode + " {\n" + strings.Join(options, "\n") + "\n    }\n"
	text := strings.ReplaceAll(corefile, clusterDNS, lab.Endpoint)
	w.write(t, "Corefile", strings.TrimSuffix(text, "}\n")+directive+"}\n")
}

// TestCNISwallows has a CNI that looks like Cilium and bypasses the host's stack;
// then the same without Cilium's links.
func TestCNISwallows(t *testing.T) {
	t.Parallel()
	w, flags := cniWorld(t, lab.RouteFIB)
	w.start(t, flags...)
	for _, says := range []string{
		"the BPF program from_pod runs on lxc0, the host's end of its link",
		"Cilium runs on this node (link cilium_host, link cilium_net)",
		"bpf.hostLegacyRouting=true",
	} {
		breakage{args: flags, want: []string{"fault pod cni-swallows"}, text: says}.examine(t, w)
	}
	output(t, w.node, "ip", "link", "delete", "cilium_host")
	breakage{args: flags, want: []string{"fault pod cni-swallows"}, text: "Turn on socket redirection (redirect), or have the CNI"}.examine(t, w)
}

// TestCNISwallowsByTCX uses the newer hook, tcx, instead of clsact.
func TestCNISwallowsByTCX(t *testing.T) {
	t.Parallel()
	lab.NeedBPF(t)
	w := newWorld(t)
	w.start(t)
	drop, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "cil_from_pod", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // TC_ACT_SHOT
	})
	must(t, err)
	t.Cleanup(func() { _ = drop.Close() })
	must(t, w.node.Do(func() error {
		l, err := netlink.LinkByName("pod0")
		if err != nil {
			return err
		}
		tcx, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: drop, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, ebpf.ErrNotSupported) {
			lab.Skip(t, "the kernel has no tcx")
		}
		if err == nil {
			t.Cleanup(func() { _ = tcx.Close() })
		}
		return err
	}))
	// It drops everything, so doctor cannot distinguish nodens from the rest of the
	// node.
	breakage{want: []string{"fault pod pod-cut-off"}, text: "cil_from_pod"}.examine(t, w)
}

// TestHealthyByRedirection: with redirection the same node is healthy, and doctor
// reports how the pod reaches nodens. A node whose CNI delivers to the host's
// stack is healthy too.
func TestHealthyByRedirection(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		mode lab.CNIMode
		text string
	}{
		{"M1", lab.RouteFIB, localAddr + " is reached by socket redirection, answered by nodens "},
		{"M3", lab.RouteFIBOrStack, "; a socket in the pods' cgroup gets the same server"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, flags := cniWorld(t, tc.mode)
			w.redirect(t, "on")
			w.start(t, flags...)
			r := w.doctor(t, nil, nil, append([]string{"-wait", "1s"}, flags...)...)
			w.expect(t, r)
			if len(r.Unexamined) > 0 {
				t.Errorf("not examined: %q", r.Unexamined)
			}
			if !hasFact(r, w.podPID, tc.text) {
				t.Errorf("no fact of the pod has %q: %+v", tc.text, r.Facts)
			}
		})
	}
}

// TestOptedOut expects that doctor checks the packets of a pod that has opted
// out.
func TestOptedOut(t *testing.T) {
	t.Parallel()
	w, flags := cniWorld(t, lab.RouteFIB)
	logs := t.TempDir()
	uid := strings.TrimPrefix(filepath.Base(w.podCgroup), "pod")
	must(t, os.Mkdir(filepath.Join(logs, "team-a_vpn-0_"+uid), 0o755))
	w.redirect(t, "on", "opt_out team-a")
	flags = append(flags, "-pod-logs", logs)
	w.start(t, flags...)
	r := w.doctor(t, nil, nil, append([]string{"-wait", "1s"}, flags...)...)
	w.expect(t, r, "fault pod cni-swallows")
	if !hasFact(r, w.podPID, "has opted out of redirection") {
		t.Errorf("facts %+v", r.Facts)
	}
}

// TestReadOnlyCgroups mounts the cgroup hierarchy read-only. In a pod redirection
// applies to doctor itself. Elsewhere doctor reports what it cannot see.
func TestReadOnlyCgroups(t *testing.T) {
	t.Parallel()
	w, flags := cniWorld(t, lab.RouteFIB)
	w.redirect(t, "on")
	w.start(t, flags...)
	kubepods := filepath.Dir(w.podCgroup)
	readOnly := []string{"sh", "-c", "mount --bind " + kubepods + " " + kubepods + " && mount -o remount,bind,ro " + kubepods + ` && exec "$@"`, "sh"}
	args := append([]string{"-wait", "1s"}, flags...)

	w.doctorCgroup = w.podCgroup
	r := w.doctor(t, readOnly, nil, args...)
	w.expect(t, r)
	if len(r.Unexamined) > 0 || !hasFact(r, w.podPID, "cannot see by which way") {
		t.Errorf("not examined: %q; facts %+v", r.Unexamined, r.Facts)
	}

	w.doctorCgroup = ""
	r = w.doctor(t, readOnly, nil, args...)
	if len(r.Unexamined) == 0 || !strings.Contains(r.Unexamined[0], "read-only file system") {
		t.Errorf("not examined: %q", r.Unexamined)
	}
}

// TestOwnCgroup runs doctor in the cgroup of the daemon, as kubectl exec does. It may not
// change the hierarchy, and its sockets are not redirected.
func TestOwnCgroup(t *testing.T) {
	t.Parallel()
	w, flags := cniWorld(t, lab.RouteFIB)
	w.redirect(t, "on")
	kubepods := filepath.Dir(w.podCgroup)
	w.doctorCgroup = lab.MakeCgroup(t, filepath.Join(kubepods, "nodens"))
	w.startAs(t, []string{"sh", "-c", "echo $$ >" + w.doctorCgroup + `/cgroup.procs && exec "$@"`, "sh"}, flags...)
	readOnly := []string{"sh", "-c", "mount --bind " + kubepods + " " + kubepods + " && mount -o remount,bind,ro " + kubepods + ` && exec "$@"`, "sh"}
	r := w.doctor(t, readOnly, nil, append([]string{"-wait", "1s"}, flags...)...)
	w.expect(t, r)
	if len(r.Unexamined) > 0 || !hasFact(r, w.podPID, localAddr+" is reached by socket redirection, answered by nodens ") {
		t.Errorf("not examined: %q; facts %+v", r.Unexamined, r.Facts)
	}
}

// TestRedirection provokes the findings about redirection.
func TestRedirection(t *testing.T) {
	t.Parallel()
	for _, p := range redirectBreakages() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			w, flags := cniWorld(t, lab.RouteFIB)
			p.flags, p.args = append(p.flags, flags...), append(flags, p.args...)
			p.run(t, w)
		})
	}
}

func redirectBreakages() []breakage {
	const pinDir = "-redirect-pin-dir"
	on := func(t *testing.T, w *world) { w.redirect(t, "on") }
	auto := func(t *testing.T, w *world) { w.redirect(t, "auto") }
	// lost has redirection on, and then loses the packets to the target.
	lost := func(name, text string, lose func(t *testing.T, w *world)) breakage {
		return breakage{name: name, down: true, do: func(t *testing.T, w *world) {
			on(t, w)
			w.start(t, w.redirectFlags...)
			lose(t, w)
		}, want: []string{"fault pod redirect-lost"}, text: text}
	}
	routeBy := func(t *testing.T, w *world, link string) { // only what the node itself sends to the pod
		output(t, w.node, "ip", "route", "add", lab.PodIP, "dev", link, "table", "99")
		output(t, w.node, "ip", "rule", "add", "from", lab.NodeIP, "to", lab.PodIP, "lookup", "99")
	}
	misroute := func(t *testing.T, w *world) { routeBy(t, w, "up0") }
	return []breakage{
		{name: "configured, not attached", do: on, want: []string{"fault node redirect-detached", "fault pod cni-swallows"}},
		lost("target unreachable", "are redirected to "+redirectTarget+", and no server answers there: a filter on the node drops them", func(t *testing.T, w *world) {
			w.node.Nft(t, "table ip t { chain c { type filter hook prerouting priority -250; iifname lxc0 meta l4proto { tcp, udp } th dport 20053 drop; }; }")
		}),
		lost("target unreachable, the CNI has a link for all pods", "a filter on the node drops them", func(t *testing.T, w *world) {
			w.node.Nft(t, "table ip t { chain c { type filter hook prerouting priority -250; iifname lxc0 meta l4proto { tcp, udp } th dport 20053 drop; }; }")
			routeBy(t, w, "cilium_host")
		}),
		lost("target behind a firewall", "these chains drop by default: ip t c", func(t *testing.T, w *world) {
			w.node.Nft(t, "table ip t { chain c { type filter hook input priority 10; policy drop; iifname lo accept; iifname != lxc0 accept; meta l4proto { tcp, udp } th dport 53 accept; }; }")
			waitForRule(t, w.node, "20053", "ip", "t", "c") // of nodens: until then doctor reports it as missing
			// As if it stood before the accept rules of nodens.
			w.node.Nft(t, "table ip u { chain c { type filter hook input priority -10; iifname lxc0 meta l4proto { tcp, udp } th dport 20053 drop; }; }")
		}),
		lost("no route to the target", "the pod has no route to "+lab.NodeIP, func(t *testing.T, w *world) {
			output(t, w.pod, "ip", "route", "add", "unreachable", lab.NodeIP)
		}),
		lost("route back to the pod", "the node's route to the pod leads to up0", misroute),
		lost("reverse path filter", "reverse path filter dropped", func(t *testing.T, w *world) {
			output(t, w.node, "sysctl", "-q", "-w", "net.ipv4.conf.lxc0.rp_filter=1")
			misroute(t, w)
		}),
		{name: "heartbeat missing", down: true, do: func(t *testing.T, w *world) {
			off := w.write(t, "Corefile.off", strings.ReplaceAll(corefile, clusterDNS, lab.Endpoint))
			on(t, w)
			w.start(t, append([]string{"-supervise=false"}, w.redirectFlags...)...).Kill()
			r := w.doctor(t, nil, nil, append([]string{"-wait", "1s"}, w.redirectFlags...)...)
			w.expect(t, r, "warning node not-serving", "warning node redirect-fallback")
			// Another nodens serves and does not touch the pinned maps and programs.
			w.start(t, "-conf", off, pinDir, "/sys/fs/bpf/another")
		}, want: []string{"warning node redirect-fallback", "warning pod redirect-fallback"}},
		{name: "no BPF file system", args: []string{pinDir, "/sys/kernel"}, do: on,
			want: []string{"fault node no-bpffs", "fault node redirect-detached", "fault pod cni-swallows"}, text: "/sys/kernel"},
		{name: "no BPF file system, auto", args: []string{pinDir, "/sys/kernel"}, do: auto,
			want: []string{"warning node no-bpffs", "fault pod cni-swallows"}},
		{name: "no cgroup v2", down: true, do: func(t *testing.T, w *world) { on(t, w); addAddress(t, w) }, wrap: []string{"sh", "-c", umountCgroup2, "sh"},
			want: []string{"fault node no-cgroup2", "fault node redirect-detached", "fault node not-serving", "warning node host-drift"}},
		{name: "no capability for BPF", down: true, do: func(t *testing.T, w *world) {
			on(t, w)
			w.startAs(t, []string{"setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-bpf,-perfmon,-sys_admin"}, w.redirectFlags...)
		}, want: []string{"fault node capability-missing", "fault node capability-missing", "fault node redirect-detached", "fault pod cni-swallows"}, text: "lacks PERFMON"},
		{name: "no capability for BPF, auto", down: true, do: func(t *testing.T, w *world) {
			auto(t, w)
			w.startAs(t, []string{"setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-bpf,-sys_admin"}, w.redirectFlags...)
		}, want: []string{"warning node capability-missing", "fault pod cni-swallows"}, text: "lacks BPF"},
	}
}

// umountCgroup2 runs a program in its own mount namespace without a cgroup v2
// mount.
const umountCgroup2 = `for m in $(grep ' - cgroup2 ' /proc/self/mountinfo | cut -d ' ' -f 5); do umount -l "$m" || exit 1; done; exec "$@"`
