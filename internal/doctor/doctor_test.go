package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// write creates a file and its parent directories.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const conntrackHeading = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error\n"

// TestConntrackDrops increases the kernel's counters while doctor runs, and leaves
// them unchanged in the control case.
func TestConntrackDrops(t *testing.T) {
	for _, tc := range []struct {
		name   string
		during string
		want   []string
	}{
		{"growing", "00000001 0 0 0 0 0 0 0 0 00000003 00000001 0 0\n00000001 0 0 0 0 0 0 0 0 00000001 0 00000010 0\n", []string{"conntrack-drops"}},
		{"unchanged", "00000001 0 0 0 0 0 0 0 0 00000002 0 0 0\n", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			proc := t.TempDir()
			stat := filepath.Join(proc, "net/stat/nf_conntrack")
			write(t, stat, conntrackHeading+"00000001 0 0 0 0 0 0 0 0 00000002 0 0 0\n")
			write(t, filepath.Join(proc, "sys/net/netfilter/nf_conntrack_count"), "1\n")
			write(t, filepath.Join(proc, "sys/net/netfilter/nf_conntrack_max"), "100\n")
			write(t, filepath.Join(proc, "self/status"), "CapEff:\t0000000000003000\n")
			r := Examine(t.Context(), Config{Proc: proc, Host: func(context.Context) (HostState, error) {
				write(t, stat, conntrackHeading+tc.during)
				return HostState{}, nil
			}})
			if got := ids(r); !slices.Equal(got, tc.want) {
				t.Errorf("found %q, want %q", got, tc.want)
			}
			if tc.want != nil && !strings.Contains(r.Findings[0].What, "19 packets while doctor ran, 21 since boot") {
				t.Error(r.Findings[0].What)
			}
		})
	}
}

func ids(r *Report) []string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, f.ID)
	}
	return all
}

// TestCiliumVersion queries a fake agent.
func TestCiliumVersion(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cilium.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/healthz" {
			fmt.Fprint(w, `{"cilium":{"msg":"1.16.5 (v1.16.5-ad688277)","state":"Ok"},"cluster":{}}`)
		}
	}))
	s.Listener = l
	s.Start()
	defer s.Close()
	if v, ok := ciliumVersion(socket, 10*time.Second); !ok || v != (version{1, 16, 5}) {
		t.Errorf("version %v, %t", v, ok)
	}
	if v, ok := ciliumVersion(socket+"x", 10*time.Second); ok {
		t.Errorf("version %v without an agent", v)
	}
	e := &examination{Config: Config{Sys: t.TempDir(), CiliumSocket: socket, Timeout: 10 * time.Second}}
	write(t, filepath.Join(e.Sys, "fs/bpf/tc/globals/cilium_lxc"), "")
	c := e.findCilium([]string{"cil_from_container"})
	for _, s := range []string{"Cilium 1.16.5", "BPF host routing", "cilium_*", "programs cil_*", "its agent answers"} {
		if !strings.Contains(c.String(), s) {
			t.Errorf("%q is not in %q", s, c)
		}
	}
}

// TestCiliumAdvice checks the advice for each version.
func TestCiliumAdvice(t *testing.T) {
	for _, tc := range []struct {
		version version
		want    string
	}{
		{version{}, "1.19"},
		{version{1, 15, 3}, "hostLegacyRouting"},
		{version{1, 16, 19}, "hostLegacyRouting"},
		{version{1, 17, 0}, "dummy link, not on lo"},
		{version{1, 18, 1}, "dummy link, not on lo"},
		{version{1, 18, 2}, "policy"},
		{version{1, 20, 0}, "policy"},
		{version{2, 0, 0}, "policy"},
	} {
		got := cilium{version: tc.version}.advice()
		if !strings.Contains(got, tc.want) || !strings.Contains(got, "redirect") {
			t.Errorf("%v: %s", tc.version, got)
		}
	}
}

const (
	containerID = "3f1c9a7be2d04c55b1f0a8d7e6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3"
	podUID      = "6d3e1f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6"
)

// TestNamesID parses cgroup paths of several runtimes and drivers.
func TestNamesID(t *testing.T) {
	for _, path := range []string{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/cri-containerd-" + containerID + ".scope\n",
		"0::/kubepods/burstable/pod" + podUID + "/" + containerID + "\n",
		"12:memory:/kubepods/pod" + podUID + "/" + containerID + "\n0::/\n",
		"0::/../../kubepods-pod" + strings.ReplaceAll(podUID, "-", "_") + ".slice/crio-" + containerID + ".scope",
	} {
		for _, id := range []string{containerID, containerID[:12], podUID, podUID[:8]} {
			if !namesID(path, id) {
				t.Errorf("%s is not found in %s", id, path)
			}
		}
		for _, id := range []string{containerID[1:13], "burst-", "deadbeef"} {
			if namesID(path, id) {
				t.Errorf("%s is found in %s", id, path)
			}
		}
	}
}

// TestOpenPod finds pods in a fake /proc.
func TestOpenPod(t *testing.T) {
	proc := t.TempDir()
	write(t, filepath.Join(proc, "thread-self/ns/net"), "")
	process := func(pid, cgroup string, host bool) {
		write(t, filepath.Join(proc, pid, "cgroup"), cgroup)
		ns := filepath.Join(proc, pid, "ns/net")
		if host {
			if err := os.MkdirAll(filepath.Dir(ns), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Link(filepath.Join(proc, "thread-self/ns/net"), ns); err != nil {
				t.Fatal(err)
			}
			return
		}
		write(t, ns, "")
	}
	process("1", "0::/init.scope\n", true)
	process("50", "0::/kubepods/podaaaaaaaa-0000/cccccccc\n", true) // a pod in the host's network
	process("700", "0::/kubepods/pod"+podUID+"/"+containerID+"\n", false)
	process("300", "0::/kubepods/podbbbbbbbb-0000/dddddddd\n", false)
	write(t, filepath.Join(proc, "300/comm"), "pause\n")
	process("60", "0::/user.slice\n", false) // not a pod
	fs := procfs(proc)
	for _, tc := range []struct {
		spec string
		pid  int
		err  string
	}{
		{Auto, 700, ""},
		{"700", 700, ""},
		{"dddddddd", 300, ""},
		{podUID[:8], 700, ""},
		{containerID[:12], 700, ""},
		{filepath.Join(proc, "60/ns/net"), 60, ""},
		{"50", 50, errHostNetwork.Error()},
		{"aaaaaaaa", 50, errHostNetwork.Error()},
		{"abc", 0, "6 characters"},
		{"abcdefab", 0, errHidden.Error()},
		{"99", 99, "no such file"},
	} {
		p, err := fs.openPod(tc.spec, "", nil)
		if p.pid != tc.pid || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: pid %d, %v; want %d, %q", tc.spec, p.pid, err, tc.pid, tc.err)
		}
		_ = p.Close()
	}
}

func TestReportText(t *testing.T) {
	n := &notes{views: []string{nodeView, "123"}}
	n.find("123", "small-mtu", "the MTU is 1200")
	n.find(nodeView, "hung", "no answer")
	n.findAs(nodeView, "search-empty", Note, "empty", "")
	n.find(nodeView, "hung", "no answer") // a duplicate
	n.fact("123", "b")
	n.fact(nodeView, "a")
	n.unexamined("links")
	var b bytes.Buffer
	if err := n.sorted().Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "node: a\n123: b\n\n" +
		block("FAULT hung (node)", "no answer", "hung") +
		block("WARNING small-mtu (123)", "the MTU is 1200", "small-mtu") +
		block("NOTE search-empty (node)", "empty", "search-empty") +
		"not examined: links\n\n1 fault, 1 warning, 1 note\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func block(heading, what, id string) string {
	k := kindOf(id)
	return heading + "\n  what  " + what + "\n  why   " + k.Why + "\n  do    " + k.Do + "\n\n"
}

func TestKindsAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range Kinds() {
		if seen[k.ID] || k.ID == "" || k.Severity.rank() < 0 || k.Why == "" || k.Do == "" {
			t.Errorf("%+v", k)
		}
		seen[k.ID] = true
	}
}

// TestTroubleshooting checks that docs/troubleshooting.md names every kind.
func TestTroubleshooting(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		if !strings.Contains(string(text), "`"+k.ID+"`") {
			t.Errorf("docs/troubleshooting.md does not name %s", k.ID)
		}
	}
}

// TestReadInRoot follows symbolic links only within the root, and opens only
// regular files.
func TestReadInRoot(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "outside"), "nameserver 192.0.2.66\n")
	root := filepath.Join(dir, "root")
	write(t, filepath.Join(root, "run/real"), "nameserver 192.0.2.1\n")
	for name, link := range map[string]string{"etc/up": "../../../../outside", "etc/absolute": "/run/real", "etc/away": filepath.Join(dir, "outside")} {
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(link, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "etc/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"run/real": "192.0.2.1", "etc/absolute": "192.0.2.1", "etc/up": "", "etc/away": "", "etc/fifo": "", "etc": "", "none": ""} {
		got, err := readInRoot(root, name)
		if (err == nil) != (want != "") || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// TestOpenPodByCgroup has a private cgroup namespace, in which /proc/PID/cgroup does not
// show whether a process is in a pod.
func TestOpenPodByCgroup(t *testing.T) {
	proc, kubepods := t.TempDir(), t.TempDir()
	write(t, filepath.Join(proc, "thread-self/ns/net"), "")
	write(t, filepath.Join(proc, "600/root/etc/resolv.conf"), "nameserver 192.0.2.53\n") // dnsPolicy Default
	write(t, filepath.Join(proc, "800/root/etc/resolv.conf"), "nameserver 10.96.0.10\n")
	for pid, comm := range map[string]string{"300": "pause\n", "600": "app\n", "700": "app\n", "800": "app\n"} {
		write(t, filepath.Join(proc, pid, "cgroup"), "0::/../../x\n")
		write(t, filepath.Join(proc, pid, "comm"), comm)
		write(t, filepath.Join(proc, pid, "ns/net"), "")
	}
	procs := filepath.Join(kubepods, "burstable", "pod"+podUID, containerID, "cgroup.procs")
	for _, tc := range []struct {
		procs, spec string
		pid         int
		err         error
	}{
		{"300\n700\n", Auto, 700, nil},
		{"300\n", Auto, 300, nil},
		{"600\n700\n", Auto, 700, nil},
		{"300\n600\n", Auto, 600, nil},
		{"700\n800\n", Auto, 800, nil}, // 700 may be a sandbox: its files are not visible
		{"300\n700\n", podUID[:8], 300, nil},
		{"0\n0\n", Auto, 0, errHidden}, // not in our PID namespace
		{"", Auto, 0, errNoPod},
		{"700\n", "abcdefab", 0, errNoPod},
	} {
		write(t, procs, tc.procs)
		p, err := procfs(proc).openPod(tc.spec, kubepods, []netip.Addr{netip.MustParseAddr("192.0.2.53")})
		if p.pid != tc.pid || !errors.Is(err, tc.err) {
			t.Errorf("%q, %s: pid %d, %v; want %d, %v", tc.procs, tc.spec, p.pid, err, tc.pid, tc.err)
		}
		_ = p.Close()
	}
}

// TestResolvConfOfAPod drops words that are not printable.
func TestResolvConfOfAPod(t *testing.T) {
	c := parseResolvConf("nameserver 10.0.0.1\nnameserver x\nsearch a.example \x1b[2J.example " + strings.Repeat("a", 64) + " b.example\noptions x\n")
	if len(c.servers) != 1 || !slices.Equal(c.search, []string{"a.example", "b.example"}) {
		t.Errorf("%+v", c)
	}
}

func TestKernelAnswers(t *testing.T) {
	answers := map[int]string{0: "for all", 7: "cali1: no lease", 8: "cali2: no lease"}
	all, own := Fact{nodeView, "fastpath: for all"}, Fact{"123", "fastpath: cali2: no lease"}
	for _, c := range []struct {
		pod  string
		want []Fact
	}{
		{Auto, []Fact{all, {nodeView, "fastpath: cali1: no lease"}, {nodeView, "fastpath: cali2: no lease"}, own}},
		{"123", []Fact{all, own}},
	} {
		e := &examination{notes: new(notes), Config: Config{Pods: []string{c.pod}, KernelAnswers: func(context.Context) map[int]string { return answers }}}
		e.examineKernelAnswers(t.Context())
		for _, peer := range []int{0, 8} { // 0: the pod has no veth
			(&podExamination{e, pod{place: place{view: "123"}}, podLinkInfo{peer: peer}}).sayKernelAnswers()
		}
		if !slices.Equal(e.report.Facts, c.want) {
			t.Errorf("pod %s: facts %v, want %v", c.pod, e.report.Facts, c.want)
		}
	}
}
