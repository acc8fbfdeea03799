// Package normalize shows the normalize directive of the built nodens to real
// stub resolvers: musl, glibc, Go and Node in a pod's namespace, with real and
// scripted resolvers behind.
package normalize

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// The program under test and the clients.
var (
	buildPlain = lab.Nodens()
	buildRace  = lab.RaceNodens()
	buildGlibc = lab.Glibc("lookup")
	buildMusl  = lab.Musl("lookup")
)
