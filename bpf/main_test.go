package bpf

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

const envRole = "NODENS_BPF_TEST_ROLE"

// TestMain runs a client or a daemon if a test started this binary as one.
func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
	case "agent":
		agentMain()
		return
	case "daemon":
		daemonMain()
		return
	case "capabilities":
		capabilitiesMain()
		return
	default:
		panic("no role " + role)
	}
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}
