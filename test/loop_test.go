package test

import (
	"net/http"
	"slices"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestLoop forwards a zone to nodens itself. nodens logs an error and counts it,
// answers other zones, and recovers after a reload.
func TestLoop(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	other := `cluster.local {
		errors
		bind ` + localIP + `
		forward . 10.1.1.2
	}
	`
	d := c.start(t, other+`. {
		errors
		loop
		bind `+localIP+`
		forward . `+localIP+`
		`+admin+`
		health 127.0.0.1:8080
	}`)
	d.Err.WaitFor(t, 0, `level=ERROR.*forwarding loop.*zone=\.`)
	c.node.WaitForMetric(t, metrics, 1, "nodens_loop_detected", "zone=.")

	expect := func(name string, rcode int, want ...string) {
		t.Helper()
		r := c.pod.Ask(t, "udp", localAddr, lab.Query(name, dns.TypeA))
		if got := lab.Data(r, dns.TypeA); r.Rcode != rcode || !slices.Equal(got, want) {
			t.Errorf("%s: %s %v, want %s %v", name, dns.RcodeToString[r.Rcode], got, dns.RcodeToString[rcode], want)
		}
	}
	expect("a.cluster.local.", dns.RcodeSuccess, "192.0.2.1")
	expect("looping.example.org.", dns.RcodeServerFailure)
	expect("b.cluster.local.", dns.RcodeSuccess, "192.0.2.1")
	if status, _ := c.node.Get(t, "127.0.0.1:8080", "/health"); status != http.StatusOK {
		t.Errorf("health: status %d", status)
	}

	mark := d.Err.Mark()
	lab.WriteFile(t, d.Conf, other+`. {
		errors
		loop
		bind `+localIP+`
		forward . 10.1.1.2
		`+admin+`
	}`)
	d.Signal(t, syscall.SIGHUP)
	d.Err.WaitFor(t, mark, `msg=reloaded`)
	c.node.WaitForMetric(t, metrics, 0, "nodens_loop_detected", "zone=.")
	expect("cured.example.org.", dns.RcodeSuccess, "192.0.2.1")
}
