// Package normalize shows the normalize directive of the built nodens to real
// stub resolvers: musl, glibc, Go and Node in a pod's namespace, with real and
// scripted resolvers behind.
package normalize

import (
	"os"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// lookupsEnv makes the test binary a client that looks up the names which the
// variable holds, with Go's own resolver and the resolv.conf that it finds.
const lookupsEnv = "NODENS_TEST_LOOKUPS"

func TestMain(m *testing.M) {
	if names, ok := os.LookupEnv(lookupsEnv); ok {
		goLookups(strings.Fields(names))
		return
	}
	os.Exit(lab.Main(m))
}

// The program under test and the clients.
var (
	buildPlain = lab.Nodens()
	buildRace  = lab.RaceNodens()
	buildGlibc = lab.CProgram("testdata/lookups.c", "gcc")
	buildMusl  = lab.CProgram("testdata/lookups.c", "musl-gcc", "-static")
)
