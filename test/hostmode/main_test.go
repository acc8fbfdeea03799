package hostmode

import (
	"flag"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// holdEnv makes the test binary a stranger that holds the DNS port of every
// address, without SO_REUSEPORT.
const holdEnv = "NODENS_TEST_HOLD"

var (
	update = flag.Bool("update", false, "write what nodens check prints to the golden files")
)

func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(holdEnv); ok {
		hold()
	}
	flag.Parse()
	os.Exit(lab.Main(m))
}

// hold takes 0.0.0.0:53, prints its process ID, and stays.
func hold() {
	c, err := net.ListenPacket("udp4", "0.0.0.0:53")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holding", os.Getpid())
	_, _, _ = c.ReadFrom(make([]byte, 1))
	os.Exit(0)
}

// The programs. nodens is race-checked where that works, except where it has to
// be as quick as in life.
var (
	raceChecked = lab.RaceNodens()
	plain       = lab.Nodens()
	glibcClient = lab.Glibc("client")
	muslClient  = lab.Musl("client")
)
