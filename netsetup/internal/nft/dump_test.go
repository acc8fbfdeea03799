package nft

import (
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzParseRule(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 0, 0, 6, 0, unix.NFTA_RULE_CHAIN, 0, 'c', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 16, 0, unix.NFTA_RULE_EXPRESSIONS, 0, 12, 0, 1, 0, 6, 0, 1, 0, 'n', 0, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		r, err := parseRule(m)
		if err != nil {
			return
		}
		for _, e := range r.Exprs {
			for _, want := range append(PortIs(unix.IPPROTO_UDP, PortDst, 53), Verdict(-5, "")...) {
				_, _ = e.is(want)
			}
		}
	})
}
