// Package doctor provokes every finding of nodens doctor in network namespaces: a
// node, a pod on it, and the servers in the cluster and outside.
package doctor

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	lab.Parallel(5)
	os.Exit(lab.Main(m))
}

// nodens has the race detector if it works here.
var nodens = lab.RaceNodens()
