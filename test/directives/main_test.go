// Package directives runs nodens and CoreDNS side by side, a Corefile for each
// directive, and holds that both answer the same but for the differences that
// are listed with their reason.
package directives

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens is race-checked.
var nodens = lab.Nodens("-race")
