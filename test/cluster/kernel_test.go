package cluster

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const gVisor = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: gvisor}
handler: runsc
`

// TestKernelAnswers: with the fast path, each client gets what CoreDNS answers directly.
// So do clients in a pod with gVisor, whose sockets are not redirected.
func TestKernelAnswers(t *testing.T) {
	needCluster(t)
	if !strings.Contains(*options, "fastpath.mode=on") {
		t.Skip("the fast path is off: set CONFIG=kernel")
	}
	startClients(t)
	waitForDNS(t)
	want := wantedNames(t)
	for _, n := range nodes {
		apply(t, podManifest("kernel-"+n, "kernel", n, idle, ""))
	}
	apply(t, gVisor+podManifest("gvisor", "kernel", "1", idle, "  runtimeClassName: gvisor\n"))
	kubectl(t, "wait", "--for=condition=Ready", "pod", "-l", "app=kernel", "--timeout", timeout.String())
	if out := kubectl(t, "exec", "gvisor", "--", "uname", "-r"); !strings.Contains(out, "gvisor") {
		t.Fatalf("the pod with gVisor has the kernel %s", out)
	}
	for _, c := range clients {
		c.wants(t, "kernel-"+c.node, want)
	}
	for _, libc := range []string{"musl", "glibc", "go"} {
		client{libc, "1"}.wants(t, "gvisor", want)
	}
	// Without the clients, only these pods send queries to nodens.
	kubectl(t, "delete", "pod", "-l", "app=client", "--wait")
	t.Cleanup(func() {
		seen.Clear()
		startClients(t)
	})
	for pod, node := range map[string]string{"kernel-1": "1", "kernel-2": "2", "gvisor": "1"} {
		waitFor(t, "answers of the kernel in "+pod, func() (bool, string) {
			before := sum(t, node, kernelAnswers)
			got := client{"musl", node}.lookup(t, pod, slices.Repeat([]string{service}, 5)...)
			if got[service] != want[service] && !strings.Contains(got[service], "EAI_") {
				t.Errorf("%s: %q, want %q", pod, got[service], want[service])
			}
			now := sum(t, node, kernelAnswers)
			return before >= 0 && now > before, fmt.Sprintf("%d answers, then %d", before, now)
		})
	}
}

// service is one of the names.
const service = "web.default.svc.cluster.local"

var kernelAnswers = regexp.MustCompile(`(?m)^nodens_kernel_answers_total (\d+)$`)
