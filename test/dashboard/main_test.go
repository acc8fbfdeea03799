// Package dashboard draws the Grafana dashboard of the chart for the docs: two nodes
// with real resolvers and clients, a real Prometheus, and Grafana's components in a
// headless Chromium.
package dashboard

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

var (
	picture = flag.String("picture", "", "`file` for the picture, a PNG; without it, nothing is drawn")
	page    = flag.String("page", "", "`directory` that draw.sh built")
	length  = flag.Duration("length", 5*time.Minute, "the time that the picture shows")
	theme   = flag.String("theme", "light", "light or dark")
	server  = flag.String("prometheus", "", "`URL` of a Prometheus with nodes of its own, instead of those of the test")
)

func TestMain(m *testing.M) {
	flag.Parse()
	lab.OwnBPFFS()
	os.Exit(lab.Main(m))
}

var (
	nodens      = lab.Nodens()
	glibcClient = lab.Glibc("client")
)
