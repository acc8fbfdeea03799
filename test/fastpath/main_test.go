// Package fastpath tests the nodens binary with the fastpath directive, on a node with
// routed and bridged pods.
package fastpath

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

// nodens is built with the race detector if that works here.
var nodens = lab.RaceNodens()

// release is built like a release.
var release = lab.ReleaseNodens()
