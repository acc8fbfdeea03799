// Package fastpath tests the nodens binary with the fastpath directive, on a node with
// routed and bridged pods.
package fastpath

import (
	"flag"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	rounds = flag.Int("rounds", 0, "`number` of rounds of the benchmark TestVeth")
	goals  = flag.Bool("goals", false, "fail if TestVeth misses a goal")
)

func TestMain(m *testing.M) {
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

// nodens is built with the race detector if that works here.
var nodens = lab.RaceNodens()

// release is built like a release.
var release = lab.ReleaseNodens()

// benchProgram has the generator of the benchmark.
var benchProgram = lab.GoProgram("bench", "github.com/nodens-dns/nodens/test/bench")
