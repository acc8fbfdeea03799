package test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

var buildARM64 = lab.ReleaseNodensFor("arm64")

// TestARM64 does with the arm64 program what `make run` does: it serves its embedded
// sample. qemu translates the program and its system calls.
func TestARM64(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "qemu-aarch64-static")
	n := lab.NewNetns(t, "node")
	p := lab.Command{Netns: n, Args: []string{"qemu-aarch64-static", buildARM64.Path(t)}}.Start(t)
	p.Out.WaitFor(t, 0, ` listens on `+localAddr)
	for _, network := range []string{"udp", "tcp", "udp"} { // the last one is a hit
		r := n.Ask(t, network, localAddr, lab.Query("kubernetes.default.svc.cluster.local.", dns.TypeA))
		if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{"10.96.0.1"}) {
			t.Errorf("over %s: %s %v", network, dns.RcodeToString[r.Rcode], got)
		}
	}
	p.Signal(t, syscall.SIGTERM)
	if status := p.Wait(t); status != 0 {
		t.Errorf("status %d after SIGTERM\n%s", status, p.Err.Text())
	}
}
