package hostmode

import (
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestInterception serves the cluster IP and the local one. For queries from a pod
// and from the node to the cluster IP, nodens answers while it runs, and otherwise
// kube-proxy's backend.
func TestInterception(t *testing.T) {
	t.Parallel()
	for _, s := range []struct{ name, binds string }{
		{"bound to the addresses", localIP + " " + serviceIP},
		{"bound to every address", ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			intercept(t, s.binds)
		})
	}
}

func intercept(t *testing.T, binds string) {
	n := newNode(t)
	pod := n.addPod(t)
	n.addKubeProxy(t)
	n.write(t, corefilePath, forwards(clusterDNS, binds))
	args := []string{"-localip", localIP + "," + serviceIP}
	service := func(want string) {
		t.Helper()
		for _, from := range []*lab.Netns{pod, n.Netns} {
			answersFrom(t, from, serviceAddr, inside, want)
		}
	}
	nodens := func() {
		t.Helper()
		service(clusterDNS)
		for _, from := range []*lab.Netns{pod, n.Netns} {
			answersFrom(t, from, localAddr, inside, clusterDNS)
		}
	}

	service(backend)
	d := n.start(t, args...)
	nodens()
	d.Kill()
	service(backend)
	d = n.start(t, args...)
	nodens()
	d.stop(t)
	service(backend)
	n.wantRestored(t, "after SIGTERM")
}

// TestInterceptionFollowsBinds reloads a Corefile with other bind addresses: the
// rules must follow the new sockets.
func TestInterceptionFollowsBinds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pod := n.addPod(t)
	n.addKubeProxy(t)
	bound, every := forwards(clusterDNS, localIP+" "+serviceIP), forwards(clusterDNS, "")
	n.write(t, corefilePath, bound)
	d := n.start(t, "-localip", localIP+","+serviceIP)
	answersFrom(t, pod, serviceAddr, inside, clusterDNS)
	for _, corefile := range []string{every, bound} {
		n.write(t, corefilePath, corefile)
		mark := d.Err.Mark()
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, "reloaded")
		answersFrom(t, pod, serviceAddr, inside, clusterDNS)
	}
	d.stop(t)
	n.wantRestored(t, "after SIGTERM")
}
