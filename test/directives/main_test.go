// Package directives runs nodens and CoreDNS side by side with a Corefile for each
// directive, and checks that both give the same answers, except for the listed
// differences.
package directives

import (
	"os"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// nodens is built with the race detector.
var nodens = lab.Nodens("-race")
