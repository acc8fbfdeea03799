// Package searchcut checks that nodens, which cuts search paths, never denies a name
// that CoreDNS has. CoreDNS runs with its kubernetes plugin, on an API server that the
// test scripts.
package searchcut

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

var nodens = lab.RaceNodens()
