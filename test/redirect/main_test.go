// Package redirect tests the nodens binary with redirected sockets of pods, on a
// node whose CNI routes as Cilium does.
package redirect

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) {
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

// release is built like a release. Only such a binary can give up privileges.
var release = lab.ReleaseNodens()

// nodens is built with the race detector if that works here.
var nodens = lab.RaceNodens()
