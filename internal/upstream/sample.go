package upstream

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/miekg/dns"
)

//go:embed sample.zone
var sampleZone string

// Sample returns the embedded zone of a small cluster: its API server, its
// kube-dns, and a headless service of two pods.
func Sample() (*Static, error) {
	var records []dns.RR
	zp := dns.NewZoneParser(strings.NewReader(sampleZone), ".", "sample.zone")
	for rr, ok := zp.Next(); ok; rr, ok = zp.Next() {
		records = append(records, rr)
	}
	if err := zp.Err(); err != nil {
		return nil, fmt.Errorf("sample zone: %w", err)
	}
	return NewStatic(records, []string{"cluster.local.", "96.10.in-addr.arpa.", "244.10.in-addr.arpa."})
}
