package doctor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/lab"
)

// Addresses of every world.
const (
	localIP    = "169.254.20.10"
	localAddr  = localIP + ":53"
	clusterDNS = "10.96.0.53"
	outsideDNS = "192.0.2.53"
	deadDNS    = "192.0.2.99" // an address of ext without a server
)

// corefile is the configuration of the daemon, and of doctor unless a test gives
// it another one.
const corefile = `cluster.local {
    errors
    cache 30
    bind ` + localIP + `
    forward . ` + clusterDNS + ` {
        force_tcp
    }
    health ` + localIP + `:8080
}
. {
    errors
    cache 30
    bind ` + localIP + `
    forward . /etc/resolv.conf
    prometheus ` + localIP + `:9253
}
`

const (
	nodeResolvConf = "search example.com\nnameserver " + outsideDNS + "\n"
	podResolvConf  = "nameserver " + localIP + "\nsearch default.svc.cluster.local svc.cluster.local cluster.local example.com\noptions ndots:5\n"
)

// world is a node with a pod, and the servers outside.
//
//	pod 10.0.1.5 ── pod0 │ node │ eth0 10.0.0.1 ── eth0 10.0.0.2 │ ext
type world struct {
	node, pod, ext *lab.Netns
	etc            string // the /etc of the node's processes
	podPID         string
	podCgroup      string      // if empty, the test's
	doctorCgroup   string      // if empty, the test's
	redirectFlags  []string    // of the daemon and of doctor, on a node with a CNI
	daemon         *lab.Daemon // the last daemon that was started

	outside atomic.Pointer[answerer] // at outsideDNS
}

// answerer is the reply function of a scripted server.
type answerer func(q *dns.Msg) *dns.Msg

// answerAs changes the replies of the server outside.
func (w *world) answerAs(a answerer) { w.outside.Store(&a) }

func newWorld(t *testing.T) *world {
	t.Helper()
	lab.NeedTools(t, "ip", "nft", "unshare", "setpriv")
	n := lab.NewNode(t, clusterDNS, outsideDNS, deadDNS)
	w := &world{node: n.Netns, pod: n.AddPod(t, "pod"), ext: n.Outside, etc: t.TempDir()}
	w.answerAs(normal)
	lab.StartUpstream(t, w.ext, outsideDNS+":53", func(q *dns.Msg) *dns.Msg { return (*w.outside.Load())(q) })
	lab.StartUpstream(t, w.ext, clusterDNS+":53", normal)
	w.write(t, "resolv.conf", nodeResolvConf)
	w.write(t, "Corefile", corefile)
	w.startPod(t, podResolvConf)
	return w
}

// startPod starts a process in the pod with its own resolv.conf.
func (w *world) startPod(t *testing.T, resolvConf string) {
	t.Helper()
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), resolvConf)
	p := lab.Command{Netns: w.pod, Cgroup: w.podCgroup, Args: []string{"sh", "-c", "echo pid $$; exec sleep 1000"}, Binds: map[string]string{"/etc/resolv.conf": file}}.Start(t)
	w.podPID = strings.TrimPrefix(p.Out.WaitFor(t, 0, `^pid `), "pid ")
}

// normal is a server without names that behaves as CoreDNS and has its version.
func normal(q *dns.Msg) *dns.Msg {
	switch question := q.Question[0]; {
	case question.Qclass == dns.ClassCHAOS && question.Name == "version.bind.":
		return lab.Reply(q, `version.bind. 0 CH TXT "CoreDNS-1.14.7"`)
	case question.Qclass == dns.ClassCHAOS:
		r := lab.Reply(q)
		r.Rcode = dns.RcodeRefused
		return r
	case question.Name == "." || question.Name == "cluster.local.":
		return lab.Denial(q, dns.RcodeSuccess, ".")
	}
	return lab.Denial(q, dns.RcodeNameError, ".")
}

func (w *world) write(t *testing.T, name, text string) string {
	t.Helper()
	lab.ReplaceFile(t, filepath.Join(w.etc, name), text)
	return "/etc/" + name
}

func (w *world) command(args ...string) lab.Command {
	return lab.Command{Netns: w.node, Args: args, Binds: map[string]string{"/etc": w.etc}}
}

// daemonFlags are the common flags of the daemon and doctor.
func daemonFlags(more ...string) []string {
	return append([]string{"-conf", "/etc/Corefile", "-localip", localIP, "-metrics-listen-address", "0"}, more...)
}

// start starts the daemon.
func (w *world) start(t *testing.T, more ...string) *lab.Daemon {
	t.Helper()
	return w.startAs(t, nil, more...)
}

// startAs starts the daemon by another program.
func (w *world) startAs(t *testing.T, wrap []string, more ...string) *lab.Daemon {
	t.Helper()
	d := &lab.Daemon{Netns: w.node}
	w.daemon = d
	d.Process = w.command(slices.Concat(wrap, []string{nodens.Path(t)}, daemonFlags(more...))...).Start(t)
	t.Cleanup(func() {
		d.Kill()
		d.CheckLog(t)
		if t.Failed() {
			t.Logf("log of nodens:\n%s", d.Err.Text())
		}
	})
	d.Out.WaitFor(t, 0, ` listens on `)
	return d
}

// output runs a program on the node and fails the test if it fails.
func output(t *testing.T, n *lab.Netns, args ...string) {
	t.Helper()
	if out, errs, status := (lab.Command{Netns: n, Args: args}).Output(t); status != 0 {
		t.Fatalf("%v: status %d\n%s%s", args, status, out, errs)
	}
}

// waitForRule waits until a chain has a rule with a text. There is no signal to wait for.
func waitForRule(t *testing.T, n *lab.Netns, text string, chain ...string) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		list, errs, status := lab.Command{Netns: n, Args: append([]string{"nft", "list", "chain"}, chain...)}.Output(t)
		switch {
		case status == 0 && strings.Contains(list, text):
			return
		case status != 0 || time.Now().After(late):
			t.Fatalf("no rule with %s: status %d\n%s%s", text, status, list, errs)
		}
	}
}

// hasFact reports whether a fact of a view contains a text.
func hasFact(r doctor.Report, view, text string) bool {
	return slices.ContainsFunc(r.Facts, func(f doctor.Fact) bool { return f.View == view && strings.Contains(f.What, text) })
}

// found is a finding in the form of the tests: "fault node id".
func found(f doctor.Finding, pod string) string {
	view := f.View
	if view == pod {
		view = "pod"
	}
	return fmt.Sprintf("%s %s %s", f.Severity, view, f.ID)
}

// doctor runs nodens doctor on the node, with the pod's view. files, contents by
// path, are visible only to doctor.
func (w *world) doctor(t *testing.T, wrap []string, files map[string]string, args ...string) doctor.Report {
	t.Helper()
	line := slices.Concat(wrap, []string{nodens.Path(t), "doctor", "-o", "json", "-pod", w.podPID}, daemonFlags(), args)
	c := w.command(line...)
	c.Cgroup = w.doctorCgroup
	c.Binds["/etc"] = w.etcWith(t, files)
	for path, text := range files {
		if !strings.HasPrefix(path, "/etc/") {
			c.Binds[path] = lab.WriteFile(t, filepath.Join(t.TempDir(), "file"), text)
		}
	}
	return report(t, c)
}

// report runs doctor and returns its report. The exit status must match it.
func report(t *testing.T, c lab.Command) doctor.Report {
	t.Helper()
	stdout, stderr, status := c.Output(t)
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("status %d, %v\n%s%s", status, err, stdout, stderr)
	}
	want := 0
	switch {
	case slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Severity != doctor.Note }):
		want = 1
	case len(r.Unexamined) > 0:
		want = 2
	}
	if status != want {
		t.Errorf("exit status %d, want %d", status, want)
	}
	if strings.Contains(stderr, "DATA RACE") || strings.Contains(stderr, "panic") {
		t.Error(stderr)
	}
	return r
}

// etcWith is a copy of /etc with other files in it.
func (w *world) etcWith(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(w.etc)))
	for path, text := range files {
		if name, ok := strings.CutPrefix(path, "/etc/"); ok {
			lab.ReplaceFile(t, filepath.Join(dir, name), text)
		}
	}
	return dir
}

// expect expects exactly these findings in a report.
func (w *world) expect(t *testing.T, r doctor.Report, want ...string) {
	t.Helper()
	var got []string
	for _, f := range r.Findings {
		got = append(got, found(f, w.podPID))
		if f.What == "" || f.Why == "" || f.Do == "" {
			t.Errorf("%s lacks a text: %+v", f.ID, f)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		text, _ := json.MarshalIndent(r, "", " ") // cannot fail: the report comes from JSON
		t.Errorf("found  %q\nwanted %q\n%s", got, want, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}
