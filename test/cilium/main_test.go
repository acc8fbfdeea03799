// Package cilium tests nodens beside a real Cilium agent, which build.sh builds from
// Cilium's Go module. The node is a network namespace; its pods are made by Cilium's CNI
// plugin, and Pods, Services and policies are in a real API server.
package cilium

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

var version = flag.String("cilium", "", "`version` of Cilium that build.sh has built")

// timeout is that of every wait: Cilium compiles its programs while the test waits.
const timeout = 5 * time.Minute

func TestMain(m *testing.M) {
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(lab.Main(m)) // in a pod, it is a client
}

// nodens has no race detector, which would slow it down.
var (
	nodens      = lab.Nodens()
	glibcClient = lab.Glibc("client")
	muslClient  = lab.Musl("client")
)

// programs returns the directory of Cilium's programs, and Kubernetes' program.
func programs(t *testing.T) (cilium, kube string) {
	t.Helper()
	if *version == "" {
		t.Skip("only with -cilium VERSION, as in make cilium")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cluster := cmp.Or(os.Getenv("CLUSTER_DIR"), filepath.Join(cache, "nodens", "cluster"))
	cilium, kube = filepath.Join(cache, "nodens", "cilium", *version), filepath.Join(cluster, "bin", "kube")
	for _, file := range []string{filepath.Join(cilium, "daemon"), kube} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v: run make cilium", err)
		}
	}
	lab.NeedBPF(t)
	return cilium, kube
}
