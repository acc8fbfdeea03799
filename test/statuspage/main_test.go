// Package statuspage opens the status page of a real nodens in a headless Chromium.
package statuspage

import (
	"flag"
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// screenshots is where the pictures go. By default it is the test's artifact directory,
// which is removed unless the test runs with -artifacts.
var screenshots = flag.String("screenshots", "", "`directory` for the screenshots; also wait until the page has a minute of history")

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens has the race detector if it works here. Screenshots are of a plain one, because the
// detector delays replies.
var nodens, plain = lab.RaceNodens(), lab.Nodens()
