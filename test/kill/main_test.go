package kill

import (
	"flag"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// envClient makes the test's binary a client, see goClient.
const envClient = "NODENS_KILL_TEST_CLIENT"

var (
	rounds = flag.Int("rounds", 2, "how often every fault is tried")
	only   = flag.String("fault", "", "the one fault to try")
)

func TestMain(m *testing.M) {
	if os.Getenv(envClient) != "" {
		goClient()
	}
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

// The programs. nodens is as quick as in life.
var (
	nodens      = lab.Nodens()
	glibcClient = lab.Glibc("client")
	muslClient  = lab.Musl("client")
)
