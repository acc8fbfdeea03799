package fastpath

import (
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
	"github.com/nodens-dns/nodens/internal/state"
)

// TestKernelAnswers: the kernel answers pods on a route and behind a bridge, over both
// address families, and its answers are in the metrics.
func TestKernelAnswers(t *testing.T) {
	n := newNode(t, fixed)
	n.start(t, 2, "fastpath on")
	for _, pod := range []*lab.Netns{n.routed, n.bridged} {
		for _, server := range servers() {
			n.warm(t, pod, server, "name.example.")
			r := pod.Ask(t, "udp", server, lab.Query("name.example.", dns.TypeA))
			if got := lab.Data(r, dns.TypeA); len(got) != 1 || got[0] != "192.0.2.1" {
				t.Errorf("%s from %s: %v", pod.Name, server, r)
			}
		}
	}
	if got := len(n.servers.Seen("name.example.")); got != 1 {
		t.Errorf("%d upstream queries", got)
	}
	n.kernelIsListed(t, "name.example.")
}

// kernelIsListed checks that the top lists count the kernel's answers for a name and for
// each pod. The kernel samples: one of eight, chosen by ID and port, counts as eight.
func (n *node) kernelIsListed(t *testing.T, name string) {
	t.Helper()
	for range 200 {
		for _, pod := range []*lab.Netns{n.routed, n.bridged} {
			pod.Ask(t, "udp", servers()[0], lab.Query(name, dns.TypeA))
		}
	}
	for late := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, body := n.Get(t, state.DefaultAddress, state.Path)
		s, err := state.Read(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		top, own := s.Top["60m"], s.Requests-s.Fastpath.Answers
		listed := []uint64{countOf(top.Names, name), countOf(top.Clients, "10.1.1.5"), countOf(top.Clients, "10.2.0.5")}
		if slices.Min(listed) > own {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("listed queries for %s, of the pod with a route and of the one on a bridge: %v; nodens itself got %d", name, listed, own)
		}
	}
}

// countOf is the count of a value in a top list.
func countOf(list []state.Entry, key string) uint64 {
	if i := slices.IndexFunc(list, func(e state.Entry) bool { return e.Key == key }); i >= 0 {
		return list[i].Count
	}
	return 0
}

// TestStatus: status says for each pod whether the kernel answers it, and why not.
func TestStatus(t *testing.T) {
	n := newNode(t, fixed)
	d := n.start(t, 2, "fastpath on {", "lease 30s", "}")
	n.warm(t, n.routed, vip4+":53", "name.example.")
	n.statusHas(t, d, nil, "cali1: the kernel answers 1 addresses", "veth1: no lease")
	bare := filepath.Join(t.TempDir(), "Corefile") // status needs no metrics
	lab.ReplaceFile(t, bare, strings.Replace(corefileWith("fastpath on"), "prometheus "+metrics, "", 1))
	n.statusHas(t, d, []string{"-conf", bare}, "cali1: the kernel answers 1 addresses", "veth1: no lease")
	d.Kill()
	<-d.Done()
	n.statusHas(t, d, nil, "unknown: cannot read the state")
}

// statusHas runs nodens status and checks what it says about the fast path.
func (n *node) statusHas(t *testing.T, d *lab.Daemon, args []string, lines ...string) {
	t.Helper()
	out, errs, _ := lab.Command{Netns: n.Netns, Args: append([]string{nodens.Path(t), "status", "-conf", d.Conf}, args...)}.Output(t)
	for _, want := range lines {
		if !strings.Contains(out, "fastpath\t"+want) {
			t.Errorf("status lacks %q:\n%s%s", want, out, errs)
		}
	}
}

// TestDenialsOfBothTypes: the kernel answers a query for an address type that a name does
// not have, although normalize judges it by both types. It stops when the other type
// changes the reply.
func TestDenialsOfBothTypes(t *testing.T) {
	const name = "name.corp.test."
	var exists atomic.Bool
	n := newNode(t, func(q *dns.Msg) *dns.Msg {
		r := lab.Denial(q, dns.RcodeNameError, "corp.test.")
		switch own := q.Question[0].Name == name; {
		case own && exists.Load() && q.Question[0].Qtype == dns.TypeA:
			r = lab.ReplyAddress(q, "192.0.2.1")
		case !own: // the namespace
			r = lab.Denial(q, dns.RcodeSuccess, "corp.test.")
		}
		for _, rr := range append(r.Answer, r.Ns...) {
			rr.Header().Ttl = 5
		}
		return r
	})
	n.start(t, 2, "normalize corp.test", "fastpath on")
	ask := func(qtype uint16) int {
		return n.routed.Ask(t, "udp", vip4+":53", lab.Query(name, qtype)).Rcode
	}
	for before, late := n.answers(t), time.Now().Add(time.Minute); n.answers(t) < before+10; {
		for range 5 {
			if rcode := ask(dns.TypeAAAA); rcode != dns.RcodeNameError {
				t.Fatalf("rcode %d of a name that does not exist", rcode)
			}
		}
		if time.Now().After(late) {
			t.Fatalf("the kernel does not answer; metrics: %s", n.passed(t))
		}
	}
	exists.Store(true)
	for late := time.Now().Add(time.Minute); ask(dns.TypeA) != dns.RcodeSuccess; {
		if time.Now().After(late) {
			t.Fatal("the new address is not found")
		}
	}
	if rcode := ask(dns.TypeAAAA); rcode != dns.RcodeSuccess {
		t.Errorf("rcode %d of a name that has an address of the other type", rcode)
	}
}

// TestPrefetch: when an answer is due for a refresh, the kernel passes one query to
// nodens. An answer in use does not expire.
func TestPrefetch(t *testing.T) {
	n := newNode(t, func(q *dns.Msg) *dns.Msg {
		r := fixed(q)
		for _, rr := range r.Answer {
			rr.Header().Ttl = 6
		}
		return r
	})
	lab.StartDaemon(t, lab.DaemonOptions{
		Binary: nodens.Path(t), Netns: n.Netns, Args: []string{"-keep-privileges"},
		Corefile: strings.Replace(corefileWith("fastpath on"), "success", "prefetch 1 1m 30%\n        success", 1),
	})
	c := n.routed.Dial(t, "udp", vip4+":53")
	for late := time.Now().Add(2 * time.Minute); ; {
		if _, err := lab.AskOn(c, lab.Query("name.example.", dns.TypeA)); err != nil {
			t.Fatal(err)
		}
		refreshed, _ := n.Scrape(t, metrics).Sum("nodens_kernel_passed_total", "reason=refresh")
		if refreshed > 0 && len(n.servers.Seen("name.example.")) > 1 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("no refresh; passed: %s", n.passed(t))
		}
	}
}
