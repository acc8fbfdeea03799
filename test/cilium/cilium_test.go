package cilium

import (
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestCilium runs everything on one node, since its start takes a minute.
func TestCilium(t *testing.T) {
	n := newNode(t)
	out, _, _ := n.cilium(t, "status", "--verbose")
	if !strings.Contains(out, "Host: BPF") || !strings.Contains(out, "Socket LB Coverage:   Full") {
		t.Fatalf("Cilium does not run with BPF host routing and its socket load balancer:\n%s", out)
	}
	p := n.addPod(t, "client", "app: client")
	p.expect(t, "without nodens", clusterDNS, "who.example", byCoreDNS)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *node, *pod)
	}{
		{"by address", testAddress},
		{"redirection", testRedirection},
		{"auto", testAuto},
		{"policies", testPolicies},
		{"DNS proxy", func(t *testing.T, n *node, _ *pod) { testDNSProxy(t, n) }},
		{"fast path", testFastpath},
		{"fast path and policies", testFastpathPolicies},
		{"fast path and DNS proxy", testFastpathDNSProxy},
		{"kills", testKills},
		{"agent restarts", testAgentRestarts},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, n, p) })
	}
}

// testAddress: since 1.18.2, pods reach an address on the node's lo. Lookups at the
// ClusterIP do not reach the node's cache, although it listens on that address: Cilium
// translates the ClusterIP when the pod's socket connects.
func testAddress(t *testing.T, n *node, p *pod) {
	text := strings.NewReplacer("bind "+vip, "bind "+vip+" "+clusterDNS, "forward . "+clusterDNS, "forward . "+n.core.ip).Replace(corefile())
	d := n.startConf(t, lab.WriteFile(t, t.TempDir()+"/Corefile", text), vip+","+clusterDNS)
	for range 3 {
		if got := p.ask(t, clusterDNS, "who.example"); got != byCoreDNS {
			t.Errorf("the ClusterIP answers %s, want %s", got, byCoreDNS)
		}
		if got := p.ask(t, vip, "who.example"); got != byNodens {
			t.Errorf("%s answers %s, want %s", vip, got, byNodens)
		}
	}
	d.stop(t)
}

// testRedirection: nodens answers lookups at both addresses, over UDP and TCP. Without
// nodens CoreDNS does.
func testRedirection(t *testing.T, n *node, p *pod) {
	d := n.start(t, n.redirecting()...)
	for _, server := range []string{vip, clusterDNS} {
		p.expect(t, "redirected", server, "who.example", byNodens)
		if got := p.askOver(t, "+tcp", server, "who.example"); got != byNodens {
			t.Errorf("over TCP, %s answers %s", server, got)
		}
	}
	if out := n.run(t, "status"); !strings.Contains(out, "redirect\tattached, alive") {
		t.Errorf("nodens status:\n%s", out)
	}
	if out := n.run(t, "doctor"); !strings.Contains(out, "no problem found") {
		t.Errorf("nodens doctor:\n%s", out)
	}
	d.Signal(t, syscall.SIGTERM)
	d.Wait(t)
	for _, server := range []string{vip, clusterDNS} {
		p.expect(t, "without nodens", server, "who.example", byCoreDNS)
	}
	d = n.start(t, n.redirecting()...)
	p.expect(t, "again", vip, "who.example", byNodens)
	d.stop(t)
	p.expect(t, "after the teardown", clusterDNS, "who.example", byCoreDNS)
}

// testAuto: auto does not redirect where pods reach the address.
func testAuto(t *testing.T, n *node, p *pod) {
	d := n.start(t, "redirect auto {\nfallback "+n.core.ip+"\n}")
	n.WaitForMetric(t, metrics, 1, "nodens_redirect_state", "state=needless")
	p.expect(t, "auto", vip, "who.example", byNodens)
	d.stop(t)
}

// testKills: no lookup fails when the worker, or all of nodens, is killed.
func testKills(t *testing.T, n *node, _ *pod) {
	d := n.start(t, n.redirecting()...)
	clients := n.startClients(t)
	endRound(t, "no fault", clients)
	for range 3 {
		mark := d.Err.Mark()
		if err := unix.Kill(d.worker(t), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.Err.WaitFor(t, mark, "sockets are redirected")
		endRound(t, "kill -9 of the worker", clients)
	}
	for range 3 {
		worker := d.worker(t)
		d.Process.Kill()
		_ = unix.Kill(worker, unix.SIGKILL) // it may have ended
		endRound(t, "kill -9 of all", clients)
		d = n.start(t, n.redirecting()...)
		d.Err.WaitFor(t, 0, "sockets are redirected")
		endRound(t, "started again", clients)
	}
	for _, c := range clients {
		c.Kill()
	}
	d.stop(t)
}

// testAgentRestarts: a new agent loads its programs again. No lookup fails, and nodens'
// programs stay.
func testAgentRestarts(t *testing.T, n *node, p *pod) {
	d := n.start(t, n.fast()...)
	if !p.warm(t, n, vip, "warm.example") {
		t.Error("the kernel does not answer")
	}
	clients := n.startClients(t)
	endRound(t, "no fault", clients)
	n.stopAgent(t)
	endRound(t, "without an agent", clients)
	n.startAgent(t)
	endRound(t, "with a new agent", clients)
	if !p.warm(t, n, vip, "warm.example") {
		t.Error("the kernel does not answer any more")
	}
	for _, c := range clients {
		c.Kill()
	}
	p.expect(t, "with a new agent", vip, "who.example", byNodens)
	d.stop(t)
}
