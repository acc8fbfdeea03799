package daemon

import (
	"net/netip"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// The example is a name that the Corefile answers on one of the addresses.
func TestExampleQuery(t *testing.T) {
	for _, tc := range []struct{ name, corefile, want string }{
		{"cluster zone", "cluster.test {\n bind 127.0.0.1\n forward . 192.0.2.1\n}\n. {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 kubernetes.default.svc.cluster.test"},
		{"root only", ". {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 example.com"},
		{"port", ".:5300 {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 -p 5300 example.com"},
		{"another zone", "in-addr.arpa {\n bind 127.0.0.1\n forward . 192.0.2.1\n}\nacme.example {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 acme.example"},
		{"without a source", "cluster.test {\n bind 127.0.0.1\n cache\n}\nacme.example {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 acme.example"},
		{"on the other address", "cluster.test {\n bind 127.0.0.2\n forward . 192.0.2.1\n}\n. {\n bind 127.0.0.1\n forward . 192.0.2.2\n}", "dig @127.0.0.1 example.com"},
	} {
		cfg, err := config.Parse("Corefile", tc.corefile, config.Source{})
		if err != nil {
			t.Fatal(err)
		}
		o := &Options{ClusterDomain: "cluster.test", DNSPort: 53}
		port := uint16(53)
		if tc.name == "port" {
			port = 5300
		}
		addrs := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port), netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
		if got := exampleQuery(cfg, o, addrs); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
