// Package corefiles runs nodens and CoreDNS side by side with Corefiles of the
// shapes that installers of node-local DNS caches write, and compares what
// they answer.
package corefiles

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens is race-checked.
var nodens = lab.Nodens("-race")
