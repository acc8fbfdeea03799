// Package redirect drives the built nodens where pods' sockets are redirected to
// it, on a node whose CNI routes as Cilium does.
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

// release is built as releases are: only then can it give up privileges.
var release = lab.ReleaseNodens()

// nodens is race-checked where that works.
var nodens = lab.RaceNodens()
