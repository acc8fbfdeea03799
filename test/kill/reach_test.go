package kill

import (
	"syscall"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// A host firewall that drops by default lets pods reach the target.
func TestInputDrop(t *testing.T) {
	n := newNode(t)
	n.dropLocalAddress(t)
	n.Nft(t, `table inet firewall { chain input { type filter hook input priority 0; policy drop; iifname lo accept; ct state established accept; }; }`)
	n.start(t, lab.NewMemory(t))
	clients := n.startClients(t)
	all := [][]result{endRound(t, clients, marksOf(clients))}
	report(t, "INPUT DROP", clients, append(all, n.waitForDaemon(t, clients)...))
	for _, c := range clients {
		c.Kill()
	}
}

// One of two fallbacks is dead. No lookup fails when the worker is killed, nor while
// nodens is away.
func TestDeadFallback(t *testing.T) {
	const dead = "10.9.0.55" // no host has it
	const noticed = `a fallback does not answer: it is not used" fallback=` + dead
	n := newNode(t)
	n.AddRoute(t, dead+"/32", lab.OutsideIP)
	n.writeConf(t, "fallback "+coreDNS+" "+dead)
	m := lab.NewMemory(t)
	d := n.start(t, m)
	d.Err.WaitFor(t, 0, noticed)
	clients := n.startClients(t)
	endRound(t, clients, marksOf(clients)) // warm up
	for range 2 {
		mark := d.mark()
		marks := marksOf(clients)
		d.signal(t, syscall.SIGKILL)
		d.waitForRedirected(t, mark)
		all := [][]result{endRound(t, clients, marks)}
		report(t, "dead fallback, kill", clients, append(all, n.waitForDaemon(t, clients)...))
	}
	marks := marksOf(clients)
	d.stop(t)
	pause(t, 5*time.Second) // nodens is away
	d = n.start(t, m)
	all := [][]result{endRound(t, clients, marks)}
	report(t, "dead fallback, away", clients, append(all, n.waitForDaemon(t, clients)...))
	d.Err.WaitFor(t, 0, noticed)
	n.Outside.AddAddrs(t, "lo", dead+"/32")
	serve(t, n.Outside, dead, "192.0.2.3")
	d.Err.WaitFor(t, 0, `a fallback answers again" fallback=`+dead)
	for _, c := range clients {
		c.Kill()
	}
}

// While pods cannot reach the target, nodens does not redirect, or stops redirecting.
// Once they reach it, nodens redirects.
func TestUnreachableTarget(t *testing.T) {
	n := newNode(t)
	m := lab.NewMemory(t)
	clients := n.startClients(t) // by address, until nodens redirects
	const drop = "table inet cni { chain pods { type filter hook prerouting priority -400; iifname pod* udp dport 20053 drop; }; }"
	n.Nft(t, drop)
	d := n.launch(t, m, nodens)
	d.Err.WaitFor(t, 0, "sockets are not redirected.*pods get no answer from the target")
	endRound(t, clients, marksOf(clients)) // nodens started after the clients
	report(t, "not redirected", clients, [][]result{endRound(t, clients, marksOf(clients))})
	n.Nft(t, "delete table inet cni")
	d.Err.WaitFor(t, 0, redirected)

	mark := d.Err.Mark()
	n.Nft(t, drop)
	d.Err.WaitFor(t, mark, "lookups go to the fallbacks.*pods get no answer from the target")
	endRound(t, clients, marksOf(clients)) // lookups that began before
	atCoreDNS := n.atCoreDNS.Load()
	report(t, "withdrawn", clients, [][]result{endRound(t, clients, marksOf(clients))})
	if n.atCoreDNS.Load() == atCoreDNS {
		t.Error("no query reached the fallback")
	}
	n.Nft(t, "delete table inet cni")
	d.Err.WaitFor(t, mark, "pods reach the target again")
	report(t, "redirected again", clients, n.waitForDaemon(t, clients))
	for _, c := range clients {
		c.Kill()
	}
}
