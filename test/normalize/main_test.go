// Package normalize tests the normalize directive of the real nodens with stub
// resolvers: musl, glibc, Go and Node in a pod's namespace. The upstreams are
// real and scripted resolvers.
package normalize

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// The program under test and the stubs.
var (
	buildPlain = lab.Nodens()
	buildRace  = lab.RaceNodens()
	buildGlibc = lab.Glibc("lookup")
	buildMusl  = lab.Musl("lookup")
)
