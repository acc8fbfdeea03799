// Package corefiles runs nodens and CoreDNS side by side with Corefiles as installers
// of node-local DNS caches write them, and compares the answers.
package corefiles

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens is built with the race detector.
var nodens = lab.Nodens("-race")
