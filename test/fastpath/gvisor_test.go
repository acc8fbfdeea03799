package fastpath

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	buildGlibc = lab.Glibc("lookup")
	buildMusl  = lab.Musl("lookup")
)

// TestGVisor: the kernel answers pods in gVisor's sandbox over IPv4. Their own network stack
// sends by a packet socket. dig gets what nodens answers over TCP, and stub resolvers get
// the address.
func TestGVisor(t *testing.T) {
	lab.NeedTools(t, "dig", "gcc", "musl-gcc")
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on {", "lease 30s", "}") // programs start slowly in a sandbox
	for _, p := range []struct {
		link string
		pod  *lab.Netns
	}{{"cali1", n.routed}, {"veth1", n.bridged}} {
		g := lab.StartGVisor(t, p.pod, "", lab.Etc(t, "nameserver "+vip4+"\n"))
		dig := strings.Fields("dig +time=60 +noall +comments +question +answer +authority +nottlid +nocookie name.example.")
		want := withoutID(sandboxed(t, g, nil, append(dig, "+tcp")...))
		if got := withoutID(n.untilKernel(t, g, nil, dig...)); got != want {
			t.Errorf("%s: the kernel answers\n%sand nodens over TCP\n%s", p.pod.Name, got, want)
		}
		goArgs, goEnv := lab.GoLookup(t, "name.example.")
		n.lookUp(t, g, goEnv, goArgs...)
		n.lookUp(t, g, nil, buildMusl.Path(t), "name.example.")
		n.lookUp(t, g, nil, buildGlibc.Path(t), "name.example.")
		answers := p.link + ": the kernel answers "
		n.reports(t, d, g, "status", "fastpath\t"+answers)
		n.reports(t, d, g, "doctor -pod "+p.pod.Path(), "fastpath: "+answers, "is in a sandbox with a network stack of its own")
	}
}

// dig prints the ID of a reply.
var queryID = regexp.MustCompile(`, id: \d+`)

func withoutID(dig string) string { return queryID.ReplaceAllString(dig, "") }

// sandboxed runs a program in a sandbox and returns its output.
func sandboxed(t *testing.T, g *lab.GVisor, env []string, args ...string) string {
	t.Helper()
	out, errs, status := g.Output(t, env, args...)
	if status != 0 {
		t.Fatalf("%v in gVisor: status %d\n%s%s", args, status, out, errs)
	}
	return out
}

// untilKernel runs a program in a sandbox again and again until the kernel answers it.
func (n *node) untilKernel(t *testing.T, g *lab.GVisor, env []string, args ...string) string {
	t.Helper()
	for late := time.Now().Add(3 * time.Minute); time.Now().Before(late); {
		before := n.answers(t)
		if out := sandboxed(t, g, env, args...); n.answers(t) > before {
			return out
		}
	}
	t.Fatalf("the kernel does not answer %v; metrics: %s", args, n.passed(t))
	return ""
}

// lookUp checks what a stub resolver in a sandbox gets from the kernel.
func (n *node) lookUp(t *testing.T, g *lab.GVisor, env []string, args ...string) {
	t.Helper()
	out := n.untilKernel(t, g, env, args...)
	if _, l, err := lab.ParseLookup(strings.TrimSpace(out)); err != nil || !slices.Equal(l.Data, []string{"192.0.2.1"}) {
		t.Errorf("%v: %v, %v", args, l, err)
	}
}

// reports waits until the output of a subcommand has the texts, while a sandbox queries.
func (n *node) reports(t *testing.T, d *lab.Daemon, g *lab.GVisor, subcommand string, want ...string) {
	t.Helper()
	args := append(append([]string{nodens.Path(t)}, strings.Fields(subcommand)...), "-conf", d.Conf)
	for late := time.Now().Add(3 * time.Minute); ; {
		sandboxed(t, g, nil, "dig", "+time=60", "name.example.")
		out, errs, _ := lab.Command{Netns: n.Netns, Args: args}.Output(t)
		want = slices.DeleteFunc(want, func(text string) bool { return strings.Contains(out, text) })
		if len(want) == 0 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%s lacks %q:\n%s%s", subcommand, want, out, errs)
		}
	}
}
