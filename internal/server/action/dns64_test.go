package action

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

func TestDNS64Clients(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		d      *DNS64
		client netip.Addr
		want   bool
	}{
		{&DNS64{}, v4, false}, {&DNS64{}, v6, true}, {&DNS64{AllowIPv4: true}, v4, true}, {nil, v6, false},
	} {
		if got := tt.d.Wants(dns.TypeAAAA, dns.ClassINET, false, tt.client); got != tt.want {
			t.Errorf("%+v, client %v: %v, want %v", tt.d, tt.client, got, tt.want)
		}
	}
}

// TestEmbed takes the table of RFC 6052 §2.4.
func TestEmbed(t *testing.T) {
	for prefix, want := range map[string]string{
		"2001:db8::/32":         "2001:db8:c000:221::",
		"2001:db8:100::/40":     "2001:db8:1c0:2:21::",
		"2001:db8:122::/48":     "2001:db8:122:c000:2:2100::",
		"2001:db8:122:300::/56": "2001:db8:122:3c0:0:221::",
		"2001:db8:122:344::/64": "2001:db8:122:344:c0:2:2100::",
		"2001:db8:122:344::/96": "2001:db8:122:344::192.0.2.33",
	} {
		d := DNS64{Prefix: netip.MustParsePrefix(prefix)}
		got, _ := netip.AddrFromSlice(d.embed([]byte{192, 0, 2, 33}))
		if got != netip.MustParseAddr(want) {
			t.Errorf("%s: got %v, want %s", prefix, got, want)
		}
	}
}
