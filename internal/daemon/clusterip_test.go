package daemon

import (
	"net/netip"
	"testing"
)

func TestWrongClusterIP(t *testing.T) {
	for _, tc := range []struct {
		env   string
		local []string
		wrong bool
	}{
		{"172.20.0.10", []string{"169.254.20.10", "10.96.0.10"}, true},
		{"172.20.0.10", []string{"169.254.20.10", "172.20.0.10"}, false},
		{"172.20.0.10", []string{"169.254.20.10"}, false},
		{"172.20.0.10", []string{"169.254.20.10", "fd00::10"}, false},
		{"fd00::a", []string{"fd00::10"}, true},
		{"fd00::a", []string{"fd00:53::10"}, false},
		{"fd00::a", []string{"fd00:53::10", "fd00::10"}, true},
		{"fd00::a", []string{"fd00:53::10", "fd00::a"}, false},
		{"fd00::a", []string{"169.254.20.10", "10.96.0.10"}, false},
		{"10.96.0.10", []string{"fd00:53::10"}, false},
		{"", []string{"10.96.0.10"}, false},
	} {
		o := &Options{Getenv: func(string) string { return tc.env }}
		for _, ip := range tc.local {
			o.LocalIPs = append(o.LocalIPs, netip.MustParseAddr(ip))
		}
		if got := wrongClusterIP(o); (got != "") != tc.wrong {
			t.Errorf("%s, %v: %q", tc.env, tc.local, got)
		}
	}
}
