// Package outage drills the most ordinary failure: the upstream is dead, slow or
// loses packets, the daemon runs in a container's memory limit, and clients continue
// to send queries. Hits must be answered, every miss must get a reply, and the
// kernel must kill nothing. CoreDNS and unbound run the same drill for comparison.
//
// By default there is one load and limit, and each drill lasts a few seconds.
// With -full there are all, for a minute each; -drill and -length choose some of
// them, and shorter ones. The upstream of a peer fails for at most 8 s, and the drill
// does not wait until its memory is back to normal. TestOutage prints a table at the end.
package outage

import (
	"flag"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	full     = flag.Bool("full", false, "run all loads and limits, for 60 s each")
	length   = flag.Duration("length", 0, "length of a drill (default 4s, with -full 1m)")
	peers    = flag.Bool("peers", false, "run CoreDNS and unbound beside nodens")
	only     = flag.String("drill", "", "run only the drills whose name matches this regular expression")
	emulated = flag.Bool("emulated", false, "one client with 500 lookups/s and 100 hits/s beside it, for an emulated CPU")
	limit    = flag.String("limits", "", "memory limits in MiB, comma-separated (default 64, with -full 64,128)")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(lab.Main(m))
}

// nodens is built without the race detector, which needs memory of its own.
var nodens = lab.Nodens()

// Addresses in the one namespace of a drill. Clients are in 127.0.1.0/24.
const (
	server   = "127.0.0.1:53"
	metrics  = "127.0.0.1:9253"
	upstream = "10.53.0.1:53"
)
