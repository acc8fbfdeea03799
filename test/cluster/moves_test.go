package cluster

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// moves are the drills that install something else than nodens.
var moves = []drill{
	{name: "helm uninstall", do: uninstall, after: func(t *testing.T) {
		teardown(t)
		upgrade(t)
	}},
	{name: "upgrade from an old chart", before: func(t *testing.T) {
		uninstall(t)
		// The old chart has no tiers and no fast path.
		old := regexp.MustCompile(`tier=(resilient|full)`).ReplaceAllString(*options, "redirect.mode=on")
		old = strings.ReplaceAll(old, "tier=minimal", "redirect.mode=off")
		old = strings.ReplaceAll(old, "--set fastpath.mode=on", "--set redirect.freeSockets=true")
		args := []string{"upgrade", "--install", "nodens", filepath.Join(dir, "old/deploy/chart"),
			"--values", "values.yaml", "--set", "image.tag=old"}
		helm(t, append(args, strings.Fields(old)...)...)
		waitForRollout(t, "nodens")
	}, do: func(t *testing.T) {
		refuseUpgrade(t, "redirect.freeSockets", "--reuse-values")
		refuseUpgrade(t, "-redirect-heartbeat", "--reset-values", "--set", "extraArgs={-redirect-heartbeat=300ms}")
		upgrade(t)
	}},
	{name: "migration from node-cache", before: func(t *testing.T) {
		uninstall(t)
		teardown(t)
		apply(t, addon(t))
		waitForRollout(t, "node-local-dns")
	}, do: func(t *testing.T) {
		file := lab.WriteFile(t, filepath.Join(t.TempDir(), "addon.yaml"), addon(t))
		out, err := exec.Command(filepath.Join(dir, "run", "nodens"), "migrate", "-image", "localhost/nodens:1", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		apply(t, string(out))
		waitForRollout(t, "node-local-dns")
	}, after: func(t *testing.T) {
		kubectl(t, "-n", "kube-system", "delete", "daemonset/node-local-dns", "configmap/node-local-dns", "service/node-local-dns", "serviceaccount/node-local-dns")
		kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=node-local-dns", "--timeout", timeout.String())
		upgrade(t)
	}},
}

// refuseUpgrade checks that the chart refuses a removed option, and that the error names it.
func refuseUpgrade(t *testing.T, gone string, more ...string) {
	t.Helper()
	args := []string{"upgrade", "nodens", "../../deploy/chart", "--namespace", "kube-system"}
	if out, err := command("helm", append(args, more...)...); err == nil || !strings.Contains(err.Error(), gone) {
		t.Errorf("helm upgrade %q: %v, want an error about %s\n%s", more, err, gone, out)
	}
}

// addon is the manifest of NodeLocal DNSCache, filled in as its documentation says.
func addon(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../cmd/nodens/testdata/migrate/addon.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("__PILLAR__LOCAL__DNS__:8080", net.JoinHostPort(localIP, "8080"), "__PILLAR__LOCAL__DNS__", localIP, "__PILLAR__DNS__SERVER__", kubeDNS,
		"__PILLAR__DNS__DOMAIN__", "cluster.local").Replace(string(text))
}

func uninstall(t *testing.T) {
	helm(t, "uninstall", "nodens", "--wait", "--timeout", timeout.String())
	kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=nodens", "--timeout", timeout.String())
}

// teardown removes nodens as docs/install.md says, and checks that nothing is left.
func teardown(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/teardown.yaml")
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`ghcr.io/nodens-dns/nodens:[0-9.]+`)
	served := localIP
	if os.Getenv("CLUSTER_DNS") == kubeDNS { // test.sh's minimal
		served += "," + kubeDNS
	}
	here := strings.ReplaceAll(image.ReplaceAllString(string(text), "localhost/nodens:1"), "169.254.20.10", served)
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "teardown.yaml"), here)
	kubectl(t, "apply", "-f", file)
	waitForRollout(t, "nodens-teardown")
	kubectl(t, "delete", "-f", file)
	for _, n := range nodes {
		left := onNode(t, n, "ls /sys/fs/bpf/; ls -d /run/nodens 2>/dev/null; ip -o address show to "+localIP+"; ip -o address show to "+kubeDNS+"; nft list ruleset 2>/dev/null | grep nodens | grep -v kube-system/nodens || true")
		if strings.TrimSpace(left) != "" {
			t.Errorf("left on node %s:\n%s", n, left)
		}
	}
}

// TestReboot crashes and restarts a node while the clients of the other node look
// up names. kube-proxy sends connections to the CoreDNS of the dead node for minutes, so
// nodens connects to the endpoints.
func TestReboot(t *testing.T) {
	needCluster(t)
	// The annotation makes new pods. Pods that run would read the Corefile within two minutes.
	upgrade(t, "--set", "endpoints.asUpstreams=true", "--set", "podAnnotations.drill=reboot")
	startClients(t)
	settle(t)
	pods, _, _ := strings.Cut(os.Getenv("POD_RANGE"), "@")
	toPod := regexp.MustCompile(`coredns_forward_requests_total{to="\[?` + regexp.QuoteMeta(pods))
	waitFor(t, "queries to an endpoint", func() (bool, string) {
		out, err := metrics("2")
		return err == nil && toPod.MatchString(out), out
	})
	start := time.Now()
	boot := onNode(t, "1", "cat /proc/sys/kernel/random/boot_id")
	var others []client
	for _, c := range clients {
		if c.node != "1" {
			others = append(others, c)
		}
	}
	_, _ = tryOnNode("1", "sync; echo b >/proc/sysrq-trigger")
	waitFor(t, "start of node 1", func() (bool, string) {
		now, err := tryOnNode("1", "cat /proc/sys/kernel/random/boot_id")
		return err == nil && now != boot && ready("1"), now
	})
	waitForRollout(t, "nodens")
	r := row{drill: "reboot of the other node", took: time.Since(start), all: endRound(t, others)}
	t.Logf("\n%s", table([]row{r}))
	r.check(t)
	for _, c := range clients { // those of node 1 have new containers
		if c.node == "1" {
			seen.Delete(c)
		}
	}
	kubectl(t, "wait", "--for=condition=Ready", "pod", "-l", "app=client", "--timeout", timeout.String())
	settle(t)
	upgrade(t)
}
