package kill

import (
	"flag"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	rounds = flag.Int("rounds", 2, "`number` of times that every fault is repeated")
	only   = flag.String("fault", "", "run this `fault` only")
	idle   = flag.Duration("idle", 0, "`time` for which TestIdle measures")
	goals  = flag.Bool("goals", false, "fail if TestIdle misses its goal")
)

func TestMain(m *testing.M) {
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

// The programs. nodens has no race detector, which would slow it down.
var (
	nodens      = lab.Nodens()
	otherShape  = lab.Nodens("-ldflags", "-X github.com/nodens-dns/nodens/bpf.layoutVersion=9999")
	glibcClient = lab.Glibc("client")
	muslClient  = lab.Musl("client")
)

// onlyLong skips a test that takes a minute or more, unless make kill runs it.
func onlyLong(t *testing.T) {
	t.Helper()
	if *rounds < 10 {
		t.Skip("only with -rounds 10, as in make kill")
	}
}
