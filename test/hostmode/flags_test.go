package hostmode

import (
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// eachForm runs f on a fresh node for every form of the flag: -x v, -x=v, --x v,
// --x=v.
func eachForm(t *testing.T, flag, value string, f func(t *testing.T, n *node, args []string)) {
	t.Helper()
	for _, args := range [][]string{
		{"-" + flag, value}, {"-" + flag + "=" + value}, {"--" + flag, value}, {"--" + flag + "=" + value},
	} {
		inForm(t, args, f)
	}
}

// eachBool is eachForm for a boolean flag, which takes no separate value.
func eachBool(t *testing.T, flag string, value bool, f func(t *testing.T, n *node, args []string)) {
	t.Helper()
	forms := []string{fmt.Sprintf("-%s=%t", flag, value), fmt.Sprintf("--%s=%t", flag, value)}
	if value {
		forms = append(forms, "-"+flag, "--"+flag)
	}
	for _, s := range forms {
		inForm(t, []string{s}, f)
	}
}

func inForm(t *testing.T, args []string, f func(t *testing.T, n *node, args []string)) {
	t.Helper()
	t.Run(strings.Join(args, " "), func(t *testing.T) {
		t.Parallel()
		f(t, newNode(t), args)
	})
}

// local returns the arguments that most tests add to the tested flag.
func local(more ...string) []string {
	return append([]string{"-localip", localIP}, more...)
}

func TestFlagLocalIP(t *testing.T) {
	t.Parallel()
	eachForm(t, "localip", localIP+","+localIP6, func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP+" "+localIP6))
		d := n.start(t, args...)
		n.answers(t, localAddr, outside, outsideDNS)
		n.answers(t, "["+localIP6+"]:53", outside, outsideDNS)
		n.has(t, true, "inet "+localIP+"/32", "inet6 "+localIP6+"/128", "table inet nodens ")
		d.stop(t)
		n.wantRestored(t, "after SIGTERM")
	})
	t.Run("bad", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		for value, want := range map[string]string{
			localIP + ", 10.96.0.10": "the list has commas and no spaces",
			"__PILLAR__LOCAL__DNS__": "is not an IP address",
			"":                       "is not an IP address",
		} {
			if got := n.refused(t, "-localip", value); !strings.Contains(got, want) {
				t.Errorf("-localip %q: %q, want %q", value, got, want)
			}
		}
	})
}

// corefileChoice is a set of Corefiles. Each forwards to another server, so that
// the answer identifies the file that was read.
type corefileChoice struct {
	name  string
	files map[string]string // path → server
	args  string
	want  string // server
}

func corefileChoices() []corefileChoice {
	const conf, corefile, base = otherDNS, stubDNS, clusterDNS
	return []corefileChoice{
		{"-conf v", map[string]string{"/etc/conf": conf}, "-conf /etc/conf", conf},
		{"-conf=v", map[string]string{"/etc/conf": conf}, "-conf=/etc/conf", conf},
		{"--conf v", map[string]string{"/etc/conf": conf}, "--conf /etc/conf", conf},
		{"--conf=v", map[string]string{"/etc/conf": conf}, "--conf=/etc/conf", conf},
		{"-corefile v", map[string]string{"/etc/core": corefile}, "-corefile /etc/core", corefile},
		{"-corefile=v", map[string]string{"/etc/core": corefile}, "-corefile=/etc/core", corefile},
		{"--corefile v", map[string]string{"/etc/core": corefile}, "--corefile /etc/core", corefile},
		{"--corefile=v", map[string]string{"/etc/core": corefile}, "--corefile=/etc/core", corefile},
		{"conf wins over corefile", map[string]string{"/etc/conf": conf, "/etc/core": corefile}, "-conf /etc/conf -corefile /etc/core", conf},
		{"in any order", map[string]string{"/etc/conf": conf, "/etc/core": corefile}, "-corefile /etc/core -conf /etc/conf", conf},
		{"corefile may be missing beside conf", map[string]string{"/etc/conf": conf}, "-conf /etc/conf -corefile /etc/core", conf},
		{"neither", map[string]string{corefilePath: corefile}, "", corefile},
		{"base wins", map[string]string{"/etc/conf": conf, "/etc/core": corefile, basePath: base}, "-conf /etc/conf -corefile /etc/core", base},
		{"base alone", map[string]string{basePath: base}, "", base},
		{"base, and conf is missing", map[string]string{basePath: base}, "-conf /etc/Corefile", base},
		{"-basecorefile v", map[string]string{"/etc/base": base, basePath: otherDNS, "/etc/conf": conf}, "-basecorefile /etc/base -conf /etc/conf", base},
		{"-basecorefile=v", map[string]string{"/etc/base": base, "/etc/conf": conf}, "-conf /etc/conf -basecorefile=/etc/base", base},
		{"--basecorefile v", map[string]string{"/etc/base": base, "/etc/conf": conf}, "--basecorefile /etc/base --conf /etc/conf", base},
		{"--basecorefile=v", map[string]string{"/etc/base": base, "/etc/conf": conf}, "--basecorefile=/etc/base -conf=/etc/conf", base},
		{"basecorefile is missing", map[string]string{basePath: base, "/etc/conf": conf}, "-basecorefile /etc/base -conf /etc/conf", conf},
	}
}

func TestWhichCorefile(t *testing.T) {
	t.Parallel()
	for _, s := range corefileChoices() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			for path, server := range s.files {
				n.write(t, path, forwards(server, localIP))
			}
			before := fileStates(t, n.etc)
			d := n.start(t, local(strings.Fields(s.args)...)...)
			n.answers(t, localAddr, outside, s.want)
			d.stop(t)
			if after := fileStates(t, n.etc); after != before {
				t.Errorf("files were written.\nbefore:\n%s\nafter:\n%s", before, after)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		got := n.refused(t, local("-conf", "/etc/conf")...)
		if want := "read Corefile: open /etc/conf: no such file or directory"; !strings.Contains(got, want) {
			t.Errorf("standard error %q, want %q", got, want)
		}
	})
}

// fileStates lists all files with their sizes and times.
func fileStates(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		fmt.Fprintln(&all, path, info.Size(), info.ModTime())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestFlagUpstreamSvc(t *testing.T) {
	t.Parallel()
	base := forwards("__PILLAR__CLUSTER__DNS__", "__PILLAR__LOCAL__DNS__")
	eachForm(t, "upstreamsvc", "my-dns-2", func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, base)
		n.env = []string{"MY_DNS_2_SERVICE_HOST=" + otherDNS, "KUBE_DNS_SERVICE_HOST=" + clusterDNS}
		n.start(t, local(args...)...)
		n.answers(t, localAddr, inside, otherDNS)
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, base)
		n.env = []string{"KUBE_DNS_SERVICE_HOST=" + clusterDNS}
		n.start(t, local()...)
		n.answers(t, localAddr, inside, clusterDNS)
	})
	t.Run("not in the environment", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, base)
		got := n.refused(t, local("-upstreamsvc", "absent")...)
		want := basePath + ":4: __PILLAR__CLUSTER__DNS__: ABSENT_SERVICE_HOST is not set"
		if !strings.Contains(got, want) {
			t.Errorf("standard error %q, want %q", got, want)
		}
	})
	t.Run("not needed", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, forwards(outsideDNS, "__PILLAR__LOCAL__DNS__"))
		n.start(t, local("-upstreamsvc", "absent")...)
		n.answers(t, localAddr, inside, outsideDNS)
	})
}

func TestFlagClusterDomain(t *testing.T) {
	t.Parallel()
	eachForm(t, "cluster-domain", "k8s.example", func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, "__PILLAR__DNS__DOMAIN__ {\n bind __PILLAR__LOCAL__DNS__\n forward . __PILLAR__CLUSTER__DNS__\n}\n"+
			forwards(outsideDNS, "__PILLAR__LOCAL__DNS__"))
		n.start(t, local(args...)...)
		n.answers(t, localAddr, "kubernetes.default.svc.k8s.example.", clusterDNS)
		n.answers(t, localAddr, inside, outsideDNS)
	})
	t.Run("bad", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		for _, value := range []string{"", ".", "a..b"} {
			if got := n.refused(t, local("-cluster-domain="+value)...); !strings.Contains(got, "not a domain name") {
				t.Errorf("-cluster-domain=%s: %q", value, got)
			}
		}
	})
}

func TestFlagSetupInterface(t *testing.T) {
	t.Parallel()
	eachBool(t, "setupinterface", false, func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		if got := n.refused(t, local(args...)...); !strings.Contains(got, "listen on "+localAddr) || !strings.Contains(got, "cannot assign requested address") {
			t.Errorf("without the address: %q", got)
		}
		n.AddAddrs(t, "lo", localIP+"/32")
		n.before = n.state(t)
		addrs := n.output(t, "ip", "-details", "addr")
		d := n.start(t, local(args...)...)
		n.answers(t, localAddr, outside, outsideDNS)
		if now := n.output(t, "ip", "-details", "addr"); now != addrs {
			t.Errorf("addresses and links have changed:\n%s\n%s", addrs, now)
		}
		d.stop(t)
		n.wantRestored(t, "after SIGTERM")
	})
	eachBool(t, "setupinterface", true, func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local(args...)...)
		n.has(t, true, "inet "+localIP+"/32")
	})
}

// TestFlagInterfaceName needs no dummy driver: a link of that name with another
// type is refused, a link with another name is ignored.
func TestFlagInterfaceName(t *testing.T) {
	t.Parallel()
	eachForm(t, "interfacename", "dns0", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		hasDummy := n.tryDummy(t)
		d := n.start(t, local(args...)...)
		if hasDummy {
			n.has(t, true, "dns0: <BROADCAST")
		}
		n.has(t, false, "nodelocaldns: <")
		d.stop(t)
		n.wantRestored(t, "after SIGTERM")

		n.output(t, "ip", "link", "add", "dns0", "type", "veth", "peer", "name", "dns1")
		n.before = n.state(t)
		if got := n.refused(t, local(args...)...); !strings.Contains(got, "link dns0: type veth, want dummy") {
			t.Errorf("a link of that name: %q", got)
		}
		n.start(t, local()...)
		n.answers(t, localAddr, outside, outsideDNS)
	})
}

// tryDummy reports whether the kernel can create dummy links.
func (n *node) tryDummy(t *testing.T) bool {
	t.Helper()
	_, _, status := n.command([]string{"ip", "link", "add", "try0", "type", "dummy"}).Output(t)
	if status != 0 {
		return false
	}
	n.output(t, "ip", "link", "del", "try0")
	return true
}

func TestFlagSetupIPTables(t *testing.T) {
	t.Parallel()
	for _, value := range []bool{false, true} {
		eachBool(t, "setupiptables", value, func(t *testing.T, n *node, args []string) {
			n.write(t, corefilePath, forwards(outsideDNS, localIP))
			d := n.start(t, local(args...)...)
			n.answers(t, localAddr, outside, outsideDNS)
			n.has(t, value, "table inet nodens ", "notrack")
			if out, _, status := n.nodens(t, append([]string{"status"}, local(args...)...)...); status != 0 {
				t.Errorf("status %d with the same flags:\n%s", status, out)
			}
			d.stop(t)
			n.wantRestored(t, "after SIGTERM")
		})
	}
}

func TestFlagSkipTeardown(t *testing.T) {
	t.Parallel()
	eachBool(t, "skipteardown", true, func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		d := n.start(t, local(args...)...)
		running := n.state(t)
		d.stop(t)
		if d := diff(running, n.state(t)); d != "" {
			t.Errorf("SIGTERM changed the host:\n%s", d)
		}
		n.start(t, local(args...)...).stop(t)
		n.start(t, local()...).stop(t)
		n.wantRestored(t, "after a process without the flag")
	})
	eachBool(t, "skipteardown", false, func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local(args...)...).stop(t)
		n.wantRestored(t, "after SIGTERM")
	})
}

// TestFlagSyncInterval checks which values are accepted. The interval itself cannot
// be observed, because drift is repaired after a notification.
func TestFlagSyncInterval(t *testing.T) {
	t.Parallel()
	eachForm(t, "syncinterval", "60", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local(args...)...)
		n.answers(t, localAddr, outside, outsideDNS)
	})
	t.Run("durations", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		for _, value := range []string{"60s", "1ns", "10s", "1m"} {
			d := n.start(t, local("-syncinterval", value)...)
			n.answers(t, localAddr, outside, outsideDNS)
			d.stop(t)
		}
	})
	t.Run("bad", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		for _, value := range []string{"0", "-1s", "5ms", "often", ""} {
			if got := n.refused(t, local("-syncinterval="+value)...); !strings.Contains(got, "syncinterval: want ") {
				t.Errorf("-syncinterval=%s: %q", value, got)
			}
		}
	})
}

func TestFlagPIDFile(t *testing.T) {
	t.Parallel()
	eachForm(t, "pidfile", "/etc/node-cache.pid", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		d := n.start(t, local(args...)...)
		text, err := os.ReadFile(n.path("/etc/node-cache.pid"))
		if want := pid(t, n); err != nil || string(text) != want+"\n" {
			t.Errorf("PID file %q, error %v, want %s", text, err, want)
		}
		d.stop(t)
		if n.exists("/etc/node-cache.pid") {
			t.Error("the PID file still exists")
		}
	})
	t.Run("cannot be written", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		d := n.start(t, local("-pidfile", "/proc/node-cache.pid")...)
		n.answers(t, localAddr, outside, outsideDNS)
		d.Err.WaitFor(t, 0, `msg="running without a PID file" error="write PID file: `)
	})
	t.Run("left by a crash", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		args := local("-pidfile", "/etc/node-cache.pid")
		n.start(t, args...).Kill()
		n.start(t, args...).stop(t)
		if n.exists("/etc/node-cache.pid") {
			t.Error("the PID file still exists")
		}
	})
}

// pid returns the ID of the only process that listens on localAddr.
func pid(t *testing.T, n *node) string {
	t.Helper()
	lab.NeedTools(t, "ss")
	out := n.output(t, "ss", "-Hltnp", "src", localAddr)
	_, rest, ok := strings.Cut(out, "pid=")
	id, _, _ := strings.Cut(rest, ",")
	if !ok || strings.Contains(rest, "pid=") {
		t.Fatalf("want one listener on %s:\n%s", localAddr, out)
	}
	return id
}

func TestFlagHealthPort(t *testing.T) {
	t.Parallel()
	eachForm(t, "health-port", "8085", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP, "health "+localIP+":8085"))
		n.start(t, local(args...)...)
		n.has(t, true, "tcp dport 8085 notrack", "tcp sport 8085 notrack")
		n.has(t, false, "dport 8080", "sport 8080")
		if status, _ := n.Get(t, localIP+":8085", "/health"); status != http.StatusOK {
			t.Errorf("/health: %d", status)
		}
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local()...)
		n.has(t, true, "tcp dport 8080 notrack", "tcp sport 8080 notrack")
	})
}

const setupErrors = "coredns_nodecache_setup_errors_total"

func TestFlagMetricsListenAddress(t *testing.T) {
	t.Parallel()
	serves := func(t *testing.T, n *node, address string) {
		t.Helper()
		m := n.Scrape(t, address)
		for _, kind := range []string{"configmap", "interface_check", "iptables"} {
			if _, ok := m.Sum(setupErrors, "errortype="+kind); !ok {
				t.Errorf("%s has no %s of %s", address, setupErrors, kind)
			}
		}
		if len(m) != 1 {
			t.Errorf("%s has %d families, want this one only", address, len(m))
		}
	}
	notServed := func(t *testing.T, n *node, address string) {
		t.Helper()
		if _, _, err := n.TryGet(t.Context(), address, "/metrics"); err == nil {
			t.Errorf("%s is served", address)
		}
	}
	eachForm(t, "metrics-listen-address", "127.0.0.1:9354", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local(args...)...)
		serves(t, n, "127.0.0.1:9354")
		notServed(t, n, "127.0.0.1:9353")
		notServed(t, n, lab.NodeIP+":9354")
	})
	eachForm(t, "metrics-listen-address", "0", func(t *testing.T, n *node, args []string) {
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local(args...)...)
		notServed(t, n, "127.0.0.1:9353")
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		n.start(t, local()...)
		serves(t, n, lab.NodeIP+":9353")
	})
	t.Run("in use by a node-cache", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP))
		other := n.Listen(t, "tcp", "0.0.0.0:9353") // without SO_REUSEPORT
		d := n.start(t, local()...)
		n.answers(t, localAddr, outside, outsideDNS)
		d.Err.WaitFor(t, 0, `address=0.0.0.0:9353 .*:9353 is held by `)
		must(t, other.Close())
		d.Err.WaitFor(t, 0, `msg="an address is available now" address=0.0.0.0:9353`)
		serves(t, n, lab.NodeIP+":9353")
	})
	t.Run("in use, and in the prometheus directive", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, corefilePath, forwards(outsideDNS, localIP, "prometheus 0.0.0.0:9353"))
		n.Listen(t, "tcp", "0.0.0.0:9353")
		if got := n.refused(t, local()...); !strings.Contains(got, "serve: listen on 0.0.0.0:9353: ") {
			t.Errorf("standard error %q", got)
		}
	})
}

func TestFlagPrometheusListenAddress(t *testing.T) {
	t.Parallel()
	corefile := forwards(outsideDNS, "__PILLAR__LOCAL__DNS__", "prometheus __PROMETHEUS__ENDPOINT__")
	eachForm(t, "prometheus-listen-address", "127.0.0.1:9255", func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, corefile)
		n.start(t, local(args...)...)
		if _, ok := n.Scrape(t, "127.0.0.1:9255").Sum("coredns_build_info"); !ok {
			t.Error("no coredns_build_info")
		}
		if _, _, err := n.TryGet(t.Context(), "127.0.0.1:9253", "/metrics"); err == nil {
			t.Error("the default address is served too")
		}
	})
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.write(t, basePath, corefile)
		n.start(t, local()...)
		n.Scrape(t, lab.NodeIP+":9253")
	})
}

// TestReload: -reloadwithsignal reloads when a file changes; a signal reloads in
// any case.
func TestReload(t *testing.T) {
	t.Parallel()
	eachBool(t, "reloadwithsignal", true, func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, forwards(outsideDNS, localIP))
		d := n.start(t, local(args...)...)
		n.answers(t, localAddr, outside, outsideDNS)
		n.write(t, basePath, forwards(otherDNS, localIP))
		d.Err.WaitFor(t, 0, `msg=reloaded reason="file changed"`)
		n.answers(t, localAddr, outside, otherDNS)
	})
	eachBool(t, "reloadwithsignal", false, func(t *testing.T, n *node, args []string) {
		n.write(t, basePath, forwards(outsideDNS, localIP))
		d := n.start(t, local(args...)...)
		to := outsideDNS
		for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGHUP} {
			n.answers(t, localAddr, outside, to)
			to = map[string]string{outsideDNS: otherDNS, otherDNS: stubDNS}[to]
			n.write(t, basePath, forwards(to, localIP))
			mark := d.Err.Mark()
			d.Signal(t, sig)
			d.Err.WaitFor(t, mark, `msg=reloaded`)
		}
		n.answers(t, localAddr, outside, to)
		if strings.Contains(d.Err.Text(), "file changed") {
			t.Error("a changed file was reloaded without the flag")
		}
	})
}

func TestFlagDNSPort(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"dns.port", "p"} {
		eachForm(t, flag, "1053", func(t *testing.T, n *node, args []string) {
			n.write(t, corefilePath, forwards(outsideDNS, localIP))
			n.start(t, local(args...)...)
			n.answers(t, localIP+":1053", outside, outsideDNS)
			n.has(t, true, "udp dport 1053 notrack", "tcp sport 1053 notrack")
			n.has(t, false, "dport 53 ")
			if c, err := n.DialContext(t.Context(), "tcp", localAddr); err == nil {
				_ = c.Close()
				t.Error("port 53 is served too")
			}
		})
	}
}

func TestFlagQuiet(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{true, false} {
		eachBool(t, "quiet", quiet, func(t *testing.T, n *node, args []string) {
			n.write(t, corefilePath, forwards(outsideDNS, localIP))
			d := n.start(t, local(args...)...)
			n.write(t, corefilePath, "bad {")
			d.Signal(t, syscall.SIGHUP)
			d.Err.WaitFor(t, 0, `level=ERROR msg="reload failed`)
			n.write(t, corefilePath, forwards(otherDNS, localIP))
			d.Signal(t, syscall.SIGHUP)
			n.waitAnswer(t, outside, otherDNS)
			d.stop(t) // the log of a reload is complete before SIGTERM is handled
			if got := strings.Contains(d.Err.Text(), "level=INFO"); got == quiet {
				t.Errorf("level=INFO in the log: %t\n%s", got, d.Err.Text())
			}
		})
	}
}

// TestFlagsThatPrint: these flags end nodens at once, whatever other flags are set,
// and change nothing.
func TestFlagsThatPrint(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for _, s := range []struct{ args, want string }{
		{"-version", "nodens "}, {"--version", "nodens "}, {"-version=true", "nodens "},
		{"-plugins", "\nforward\n"}, {"--plugins", "\nforward\n"}, {"-plugins=true", "\nforward\n"},
	} {
		args := local(slices.Concat(strings.Fields(s.args), []string{"-conf", "/etc/none"})...)
		out, errs, status := n.nodens(t, args...)
		if status != 0 || !strings.Contains(out, s.want) || errs != "" {
			t.Errorf("%v: status %d, %q, %q", args, status, out, errs)
		}
	}
	n.wantRestored(t, "after flags that print")
}
