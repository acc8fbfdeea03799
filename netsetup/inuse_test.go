package netsetup

import (
	"net/netip"
	"testing"
)

// InUse finds a process with other addresses while it runs, but not what it leaves
// behind.
func TestInUse(t *testing.T) {
	eachMode(t, func(t *testing.T, ns *namespace, m mode) {
		other := ns.config(m, "")
		other.Addrs = []netip.Addr{netip.MustParseAddr("169.254.77.7")}
		expect := func(want bool) {
			t.Helper()
			if used, err := InUse(t.Context(), other); used != want || err != nil {
				t.Errorf("in use: %t, %v; want %t", used, err, want)
			}
		}
		expect(false)
		h := newHost(t, ns.config(m, "one"))
		check(t, h.Addresses.Ensure(t.Context()))
		check(t, h.Rules.Ensure(t.Context()))
		expect(true)
		check(t, h.Close())
		expect(false)
	})
}
