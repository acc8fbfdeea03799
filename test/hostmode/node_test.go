package hostmode

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// Addresses on every node. The servers are in a separate namespace. Each answers
// all address queries with its own address, which identifies it.
const (
	localIP   = "169.254.20.10"
	localIP6  = "fd00:20::10"
	localAddr = localIP + ":53"

	clusterDNS = "10.96.0.53"   // the upstream Service of the cluster's DNS
	outsideDNS = "192.0.2.53"   // in resolv.conf
	otherDNS   = "192.0.2.54"   // not configured by default
	stubDNS    = "198.51.100.1" // the server of a stub domain

	inside  = "kubernetes.default.svc.cluster.local."
	outside = "www.example.org."
)

// Files of node-cache.
const (
	corefilePath = "/etc/Corefile"
	basePath     = "/etc/coredns/Corefile.base"
	kubeDNSPath  = "/etc/kube-dns"
)

// node is a node and its /etc, a directory that contains only what a test writes
// there.
type node struct {
	*lab.Node
	etc string
	env []string

	servers map[string]*lab.Upstream // by address
	before  string                   // the host's state before nodens started
}

// newNode makes a node. In its environment, clusterDNS is the address of the
// Services kube-dns-upstream and kube-dns.
func newNode(t *testing.T) *node {
	t.Helper()
	lab.NeedTools(t, "ip", "nft", "unshare")
	n := &node{
		Node: lab.NewNode(t), etc: t.TempDir(),
		env:     []string{"KUBE_DNS_SERVICE_HOST=" + clusterDNS, "KUBE_DNS_UPSTREAM_SERVICE_HOST=" + clusterDNS},
		servers: make(map[string]*lab.Upstream),
	}
	for _, ip := range []string{clusterDNS, outsideDNS, otherDNS, stubDNS} {
		n.startServer(t, ip, func(q *dns.Msg) *dns.Msg { return lab.ReplyAddress(q, ip) })
	}
	n.write(t, "/etc/resolv.conf", "nameserver "+outsideDNS+"\n")
	n.write(t, "/etc/hosts", "127.0.0.1 localhost\n")
	n.write(t, "/etc/nsswitch.conf", "hosts: files dns\n")
	n.before = n.state(t)
	return n
}

// startServer adds a server outside the node.
func (n *node) startServer(t *testing.T, ip string, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	n.AddServer(t, ip)
	n.servers[ip] = lab.StartUpstream(t, n.Outside, ip+":53", answer)
}

// path returns the path outside the node of a file below its /etc.
func (n *node) path(file string) string {
	return filepath.Join(n.etc, strings.TrimPrefix(file, "/etc/"))
}

// write writes a file below /etc by rename.
func (n *node) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(file)), 0o755); err != nil {
		t.Fatal(err)
	}
	lab.ReplaceFile(t, n.path(file), text)
}

// exists reports whether a file below /etc exists.
func (n *node) exists(file string) bool {
	_, err := os.Lstat(n.path(file))
	return err == nil
}

// stateScript prints links, addresses, routes, rules and nftables.
const stateScript = `set -e
for cmd in 'ip -details link' 'ip -details addr' 'ip -4 route show table all' 'ip -6 route show table all' \
	'ip -4 rule' 'ip -6 rule' 'nft list ruleset'; do
	echo "$ $cmd"
	$cmd
done`

// An IPv6 address, and its local route, which the kernel adds in a worker a moment
// later.
var (
	addressOfIPv6 = regexp.MustCompile(`(?m)^    inet6 ([0-9a-f:]+)/`)
	routeOfIPv6   = regexp.MustCompile(`(?m)^local ([0-9a-f:]+) dev `)
)

// state is the state of the host, after the kernel has added all routes.
func (n *node) state(t *testing.T) string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(10 * time.Second); ; {
		s := n.readState(t)
		if len(addressOfIPv6.FindAllString(s, -1)) <= len(routeOfIPv6.FindAllString(s, -1)) {
			return s
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Logf("IPv6 addresses without a route:\n%s", s)
			return s
		}
	}
}

func (n *node) readState(t *testing.T) string {
	t.Helper()
	out, errs, status := lab.Command{Netns: n.Netns, Args: []string{"sh", "-c", stateScript}}.Output(t)
	if status != 0 {
		t.Fatalf("read the state of the host: status %d\n%s", status, errs)
	}
	return out
}

// wantRestored checks that the host is as it was before nodens started.
func (n *node) wantRestored(t *testing.T, when string) {
	t.Helper()
	if d := diff(n.before, n.state(t)); d != "" {
		t.Errorf("%s the host has changed:\n%s", when, d)
	}
}

// diff lists the lines that one text has more often than the other, those of a
// with "-", those of b with "+".
func diff(a, b string) string {
	count := make(map[string]int)
	for line := range strings.Lines(b) {
		count[line]++
	}
	var all strings.Builder
	for line := range strings.Lines(a) {
		if count[line]--; count[line] < 0 {
			all.WriteString("-" + line)
		}
	}
	for line := range strings.Lines(b) {
		if count[line] > 0 {
			count[line]--
			all.WriteString("+" + line)
		}
	}
	return all.String()
}

// output runs a program that must succeed and returns its standard output.
func (n *node) output(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, status := n.command(args).Output(t)
	if status != 0 {
		t.Fatalf("%v: status %d\n%s%s", args, status, out, errs)
	}
	return out
}

func (n *node) command(args []string) lab.Command {
	return lab.Command{Netns: n.Netns, Args: args, Env: n.env, Binds: map[string]string{"/etc": n.etc}}
}

// nodens runs nodens to its end.
func (n *node) nodens(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return n.command(append([]string{raceChecked.Path(t)}, args...)).Output(t)
}

// refused runs a nodens that must fail to start, and returns its standard error.
// It checks that the host has not changed.
func (n *node) refused(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, status := n.nodens(t, args...)
	if status == 0 || strings.Contains(stdout, "listens on") {
		t.Errorf("nodens %v: status %d, want a failure\n%s%s", args, status, stdout, stderr)
	}
	n.wantRestored(t, "after a failed start")
	return stderr
}

// daemon is a running nodens.
type daemon struct {
	*lab.Process
	n    *node
	args []string
}

// start starts nodens and waits until it serves. At the end of the test it must
// end on SIGTERM with status 0, without a panic or a data race.
func (n *node) start(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := n.launch(t, raceChecked, args...)
	d.ready(t)
	return d
}

// launch is start without the wait.
func (n *node) launch(t *testing.T, build *lab.Program, args ...string) *daemon {
	t.Helper()
	d := &daemon{n: n, args: args}
	d.Process = n.command(append([]string{build.Path(t)}, args...)).Start(t)
	t.Cleanup(func() {
		select {
		case <-d.Done():
		default:
			d.stop(t)
		}
		(&lab.Daemon{Process: d.Process}).CheckLog(t)
		if t.Failed() {
			t.Logf("log of nodens %v:\n%s", args, d.log())
		}
	})
	return d
}

func (d *daemon) ready(t *testing.T) {
	t.Helper()
	d.Out.WaitFor(t, 0, ` listens on `)
}

// stop ends nodens by SIGTERM.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.Signal(t, syscall.SIGTERM)
	d.ended(t)
}

// log returns the last lines of the log.
func (d *daemon) log() string {
	const count = 25
	lines := strings.Split(d.Err.Text(), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// ended waits for the end of the process after SIGTERM.
func (d *daemon) ended(t *testing.T) {
	t.Helper()
	if status := d.Wait(t); status != 0 {
		t.Errorf("nodens %v: status %d after SIGTERM\n%s", d.args, status, d.log())
	}
}

// answers checks that server, IP:port, answers a query for name with the answer of
// the server at address want, over UDP and TCP.
func (n *node) answers(t *testing.T, server, name, want string) {
	t.Helper()
	answersFrom(t, n.Netns, server, name, want)
}

func answersFrom(t *testing.T, from *lab.Netns, server, name, want string) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		r, err := from.TryAsk(t, network, server, lab.Query(name, dns.TypeA))
		if err != nil {
			t.Errorf("%s queries %s over %s for %s: %v", from.Name, server, network, name, err)
			continue
		}
		if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{want}) {
			t.Errorf("%s queries %s over %s for %s: %s %v, want %s", from.Name, server, network, name, dns.RcodeToString[r.Rcode], got, want)
		}
	}
}

// has checks that the host's state contains all the texts, or none of them.
func (n *node) has(t *testing.T, want bool, texts ...string) {
	t.Helper()
	state := n.state(t)
	for _, s := range texts {
		if strings.Contains(state, s) != want {
			t.Errorf("%q in the host's state: %t, want %t\n%s", s, !want, want, state)
		}
	}
}

// forwards is a Corefile that forwards all queries to the given addresses to one
// server. more are further lines of its block.
func forwards(to, binds string, more ...string) string {
	bind := ""
	if binds != "" {
		bind = "    bind " + binds + "\n"
	}
	return ". {\n    errors\n" + bind + "    forward . " + to + "\n    " + strings.Join(more, "\n    ") + "\n}\n"
}

// waitAnswer queries localAddr until the answer is want. Use it only if there is
// nothing else to wait for.
func (n *node) waitAnswer(t *testing.T, name, want string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(lab.QueryTimeout)
	for {
		got := lab.Data(n.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA)), dns.TypeA)
		if slices.Equal(got, []string{want}) {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s answers %v for %s, want %s", localAddr, got, name, want)
		}
	}
}
