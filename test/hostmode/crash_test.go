package hostmode

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// bothLocal are the arguments in this file: a link-local address, and one that
// counts as a Service's.
var bothLocal = []string{"-localip", localIP + "," + localIP6}

func newBothLocal(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP+" "+localIP6))
	return n
}

// TestCrash kills nodens and starts it again, after the same and after other
// arguments. The host must be as after a first start.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name  string
		local string // address of the killed process, besides localIP6
		more  []string
	}{
		{"same arguments", localIP, nil},
		{"other address", "169.254.20.11", nil},
		{"other ports", localIP, []string{"-health-port", "8085", "-metrics-listen-address", "0"}},
		{"no rules", localIP, []string{"-setupiptables=false"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := newBothLocal(t)
			d := n.start(t, bothLocal...)
			want := n.anonymous(t)
			d.stop(t)

			n.write(t, "/etc/killed", forwards(outsideDNS, s.local+" "+localIP6))
			n.start(t, append([]string{"-conf", "/etc/killed", "-localip", s.local + "," + localIP6}, s.more...)...).Kill()
			if left := n.state(t); left == n.before {
				t.Error("SIGKILL left nothing: this test cannot fail")
			}
			d = n.start(t, bothLocal...)
			if d := diff(want, n.anonymous(t)); d != "" {
				t.Errorf("after SIGKILL and a start the host differs from a first start:\n%s", d)
			}
			n.answers(t, localAddr, outside, outsideDNS)
			n.answers(t, "["+localIP6+"]:53", outside, outsideDNS)
			d.stop(t)
			n.wantRestored(t, "after SIGTERM")
		})
	}
}

// TestCrashThenNoRules: a start that wants no rules removes those that a crash
// left.
func TestCrashThenNoRules(t *testing.T) {
	t.Parallel()
	n := newBothLocal(t)
	n.start(t, bothLocal...).Kill()
	n.has(t, true, "table inet nodens ")
	d := n.start(t, append([]string{"-setupiptables=false"}, bothLocal...)...)
	n.has(t, false, "table inet nodens")
	d.stop(t)
	n.wantRestored(t, "after SIGTERM")
}

// anonymous is the state without the generation.
func (n *node) anonymous(t *testing.T) string {
	t.Helper()
	out, _, _ := n.nodens(t, append([]string{"status"}, bothLocal...)...)
	m := generation.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("nodens status:\n%s", out)
	}
	var all strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(n.state(t), m[1], "GENERATION")) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "metric"); i >= 0 && strings.HasPrefix(line, "    inet") {
			line = strings.Replace(line, "metric "+fields[i+1], "metric MARK", 1)
		}
		all.WriteString(line)
	}
	return all.String()
}

// TestTeardown: teardown removes what a crash left, twice, and nothing else. Beside
// a running process it removes nothing, with -force only redirection.
func TestTeardown(t *testing.T) {
	t.Parallel()
	n := newBothLocal(t)
	n.output(t, "nft", "add table inet other; add chain inet other input { type filter hook input priority 0; }")
	n.AddAddrs(t, "lo", "203.0.113.1/32")
	n.before = n.state(t)
	teardown := append([]string{"teardown"}, bothLocal...)
	teardownOK := func(when string) {
		t.Helper()
		if out, errs, status := n.nodens(t, teardown...); status != 0 || errs != "" {
			t.Errorf("%s: status %d\n%s%s", when, status, out, errs)
		}
		n.wantRestored(t, "after teardown "+when)
	}
	teardownOK("of nothing")
	n.start(t, bothLocal...).Kill()
	teardownOK("after SIGKILL")
	teardownOK("again")
	n.start(t, append(bothLocal, "-skipteardown")...).stop(t)
	if _, errs, status := n.nodens(t, "teardown"); status != 0 {
		t.Errorf("without arguments: status %d\n%s", status, errs)
	}
	n.wantRestored(t, "after teardown without arguments")

	d := n.start(t, bothLocal...)
	if _, errs, status := n.nodens(t, teardown...); status != 1 || !strings.Contains(errs, fmt.Sprintf("teardown: nodens runs (pid %d): ", d.PID())) || !strings.Contains(errs, "-force") {
		t.Errorf("beside a running process: status %d\n%s", status, errs)
	}
	if _, errs, status := n.nodens(t, append(teardown, "-force")...); status != 0 {
		t.Errorf("beside a running process with -force: status %d\n%s", status, errs)
	}
	if out, errs, status := n.nodens(t, append([]string{"status"}, bothLocal...)...); status != 0 {
		t.Errorf("after teardown -force: status %d\n%s%s", status, out, errs)
	}
	d.stop(t)
	n.wantRestored(t, "after SIGTERM")
}

// TestStatus: status prints the state of the host. Its exit status reports whether
// the state is as wanted.
func TestStatus(t *testing.T) {
	t.Parallel()
	n := newBothLocal(t)
	status := func(when string, want int, texts ...string) {
		t.Helper()
		out, errs, got := n.nodens(t, append([]string{"status"}, bothLocal...)...)
		if got != want {
			t.Errorf("%s: exit status %d, want %d\n%s%s", when, got, want, out, errs)
		}
		if reported := strings.Contains(errs, "the host is not set up as wanted"); reported != (want != 0) {
			t.Errorf("%s: standard error %q", when, errs)
		}
		for _, s := range texts {
			if !strings.Contains(out, s) {
				t.Errorf("%s: no %q in\n%s", when, s, out)
			}
		}
	}
	status("before the start", 1, "link\tnone", "address\t"+localIP+" missing\n", "address\t"+localIP6+" missing\n", "rules\tmissing\n")
	d := n.start(t, bothLocal...)
	link := "lo"
	if n.tryDummy(t) {
		link = "nodelocaldns (generation "
	}
	status("while running", 0, "link\t"+link, "address\t"+localIP+" on ", "address\t"+localIP6+" on ", "rules\tpresent (generation ")
	mark := d.Err.Mark()
	n.output(t, "nft", "add table inet firewall; add chain inet firewall input { type filter hook input priority 0; policy drop; }")
	d.Err.WaitFor(t, mark, `drifted, repaired.* object=accepts`)
	status("with a firewall", 0, "accepts\tin inet firewall input")
	n.output(t, "nft", "delete table inet firewall")
	d.Kill()
	status("after SIGKILL", 1, "address\t"+localIP+" on ", "no process runs")
	n.output(t, "nft", "flush chain inet nodens output")
	status("with rules flushed", 1, "rules\tpresent", "differs from what this configuration makes")
	n.output(t, "nft", "delete table inet nodens")
	status("without rules", 1, "rules\tmissing")
	if out, _, got := n.nodens(t, append([]string{"status", "-setupiptables=false"}, bothLocal...)...); got != 0 || !strings.Contains(out, "rules\tnot wanted") {
		t.Errorf("rules not wanted: exit status %d\n%s", got, out)
	}
	n.output(t, raceChecked.Path(t), "teardown")
	status("after teardown", 1, "link\tnone", "rules\tmissing")
	n.wantRestored(t, "after teardown")
}

// repairLimit is the time within which drift must be repaired. A node needs some
// milliseconds, which the test prints. The limit allows for a slow machine and is
// well below the sync interval of a minute.
const repairLimit = 10 * time.Second

// TestRepair deletes parts of the setup one after the other. Each must be restored
// in time and serve again.
func TestRepair(t *testing.T) {
	t.Parallel()
	n := newBothLocal(t)
	d := n.start(t, bothLocal...)
	want := n.state(t)
	link := "lo"
	if n.tryDummy(t) {
		link = "nodelocaldns"
	}
	for _, s := range []string{
		"ip addr del " + localIP + "/32 dev " + link,
		"ip addr del " + localIP6 + "/128 dev " + link,
		"nft delete table inet nodens",
		"nft flush chain inet nodens prerouting",
		"nft flush ruleset",
	} {
		mark, start := d.Err.Mark(), time.Now()
		n.output(t, strings.Fields(s)...)
		d.Err.WaitFor(t, mark, `drifted, repaired`)
		took := time.Since(start)
		t.Logf("%s: repaired after %v", s, took.Round(time.Millisecond))
		if took > repairLimit {
			t.Errorf("%s: repaired after %v, want %v at most", s, took, repairLimit)
		}
		if d := diff(want, n.state(t)); d != "" {
			t.Errorf("%s: after the repair the host has changed:\n%s", s, d)
		}
		n.answers(t, localAddr, outside, outsideDNS)
		n.answers(t, "["+localIP6+"]:53", outside, outsideDNS)
	}
	d.stop(t)
	n.wantRestored(t, "after SIGTERM")
}

// TestPortInUse: the error names the process that occupies port 53.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	n := newBothLocal(t)
	self, err := os.Executable()
	must(t, err)
	other := lab.Command{Netns: n.Netns, Args: []string{self}, Env: []string{occupyEnv + "=1"}}.Start(t)
	var id int
	if _, err := fmt.Sscanf(other.Out.WaitFor(t, 0, `^occupied`), "occupied %d", &id); err != nil {
		t.Fatal(err)
	}
	got := n.refused(t, bothLocal...)
	for _, want := range []string{"serve: listen on ", "address already in use", fmt.Sprintf("udp 0.0.0.0:53 is held by hostmode.test (pid %d)", id)} {
		if !strings.Contains(got, want) {
			t.Errorf("standard error %q, want %q", got, want)
		}
	}
	other.Kill()
	n.start(t, bothLocal...)
	n.answers(t, localAddr, outside, outsideDNS)
}

// TestStatusFindsTheDaemon: without flags, status and doctor use flags and files of the
// daemon in the same network, which here has another mount namespace, like a container.
func TestStatusFindsTheDaemon(t *testing.T) {
	for name, args := range map[string][]string{
		"without flags": nil,
		"-conf /etc/Corefile -localip " + localIP: {"-conf", corefilePath, "-localip", localIP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.write(t, corefilePath, ".:53 {\n bind "+localIP+"\n forward . "+outsideDNS+"\n prometheus :9253\n}\n")
			if out, _, status := (lab.Command{Netns: n.Netns, Args: []string{raceChecked.Path(t), "status"}}).Output(t); status != 1 || !strings.Contains(out, "none runs in this network") {
				t.Errorf("exit status %d without a daemon\n%s", status, out)
			}
			d := n.start(t, args...)
			want := fmt.Sprintf("pid %d, %s\n", d.PID(), name)
			for _, command := range [][]string{{"status"}, {"doctor", "-pod", "none"}, {"status", "-o", "json"}, {"doctor", "-o", "json", "-pod", "none"}} {
				out, errs, status := lab.Command{Netns: n.Netns, Args: append([]string{raceChecked.Path(t)}, command...)}.Output(t)
				isJSON := slices.Contains(command, "json")
				if status != 0 || isJSON != json.Valid([]byte(out)) || !isJSON && !strings.Contains(out, want) {
					t.Errorf("%v: exit status %d, want 0 and %q\n%s%s", command, status, want, out, errs)
				}
			}
		})
	}
}
