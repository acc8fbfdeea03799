package hostmode

import (
	"flag"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// occupyEnv makes the test binary a process that occupies the DNS port of every
// address, without SO_REUSEPORT.
const occupyEnv = "NODENS_TEST_OCCUPY"

var (
	update = flag.Bool("update", false, "write the output of nodens check to the golden files")
)

func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(occupyEnv); ok {
		occupy()
	}
	flag.Parse()
	os.Exit(lab.Main(m))
}

// occupy binds 0.0.0.0:53, prints its process ID and waits.
func occupy() {
	c, err := net.ListenPacket("udp4", "0.0.0.0:53")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("occupied", os.Getpid())
	_, _, _ = c.ReadFrom(make([]byte, 1))
	os.Exit(0)
}

// The programs. nodens is race-checked if that works, except in tests that need
// its production speed.
var (
	raceChecked = lab.RaceNodens()
	plain       = lab.Nodens()
	glibcClient = lab.Glibc("client")
	muslClient  = lab.Musl("client")
)
