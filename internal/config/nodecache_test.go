package config

import (
	"net/netip"
	"strings"
	"testing"
)

func addrs(t *testing.T, s ...string) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	for _, a := range s {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

const baseCorefile = `__PILLAR__DNS__DOMAIN__:53 {
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    prometheus __PROMETHEUS__ENDPOINT__
    health __PILLAR__LOCAL__DNS__:8080
}
.:53 {
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__ {
       force_tcp
       max_fails 3
    }
}
`

func TestRender(t *testing.T) {
	tmpl := Template{
		LocalIPs: addrs(t, "169.254.20.10", "10.96.0.10"), DNSPort: 53, ClusterDNS: netip.MustParseAddr("10.100.7.7"),
		ClusterDomain: "cluster.local", PrometheusEndpoint: ":9253",
	}
	got, err := tmpl.Render("Corefile.base", baseCorefile)
	if err != nil {
		t.Fatal(err)
	}
	want := `cluster.local:53 {
    bind 169.254.20.10 10.96.0.10 
    forward . 10.100.7.7 {
        force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
}
.:53 {
    bind 169.254.20.10 10.96.0.10 
    forward . /etc/resolv.conf {
       force_tcp
       max_fails 3
    }
}
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestRenderKubeDNS(t *testing.T) {
	tmpl := Template{
		LocalIPs: addrs(t, "fd00::10"), DNSPort: 53, ClusterDNS: netip.MustParseAddr("fd00:96::a"), ClusterDomain: "cluster.local",
		KubeDNS: KubeDNS{
			UpstreamNameservers: []string{"8.8.8.8", "1.1.1.1:5353"},
			StubDomains:         map[string][]string{"b.example": {"10.0.0.2"}, "a.example": {"10.0.0.1", "10.0.0.3:54"}},
		},
	}
	got, err := tmpl.Render("Corefile.base", baseCorefile)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"    forward . fd00:96::a {\n        force_tcp\n    }\n",
		"    forward . 8.8.8.8 1.1.1.1:5353 {\n\n       max_fails 3\n    }\n",
		"    health [fd00::10]:8080\n",
		"\na.example:53 {\n    errors\n    cache 30\n    bind fd00::10\n    forward . 10.0.0.1 10.0.0.3:54\n}\n\nb.example:53 {\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestRenderWithoutClusterDNS(t *testing.T) {
	tmpl := Template{ClusterDNSFrom: "KUBE_DNS_SERVICE_HOST"}
	_, err := tmpl.Render("Corefile.base", baseCorefile)
	want := "Corefile.base:3: __PILLAR__CLUSTER__DNS__: KUBE_DNS_SERVICE_HOST is not set; name the upstream Service with -upstreamsvc, or write its address here"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := tmpl.Render("Corefile.base", "# __PILLAR__CLUSTER__DNS__\n. {\n}\n"); err != nil {
		t.Errorf("placeholder in a comment: %v", err)
	}
}

func TestParseKubeDNS(t *testing.T) {
	k, err := ParseKubeDNS(`{"acme.local": ["1.2.3.4", "tls://9.9.9.9%dns.quad9.net", "[fd00::1]:53"]}`, `["8.8.8.8", "/run/resolv.conf"]`)
	if err != nil || len(k.StubDomains["acme.local"]) != 3 || len(k.UpstreamNameservers) != 2 {
		t.Errorf("%+v, %v", k, err)
	}
	if k, err := ParseKubeDNS("", " \n"); err != nil || k.StubDomains != nil || k.UpstreamNameservers != nil {
		t.Errorf("absent keys: %+v, %v", k, err)
	}
	for _, c := range []struct{ stub, up, want string }{
		{`["a"]`, ``, "stubDomains: expected a JSON object of domains to lists of servers: "},
		{``, `8.8.8.8`, "upstreamNameservers: expected a JSON list of servers: "},
		{``, `["1.1.1.1","1.1.1.2","1.1.1.3","1.1.1.4"]`, "upstreamNameservers: 4 servers are too many, the maximum is 3"},
		{``, `["dns.example"]`, `upstreamNameservers: "dns.example" is not a server: `},
		{``, `["1.1.1.1:0"]`, `upstreamNameservers: "1.1.1.1:0" is not a server: `},
		{`{"acme.local": []}`, ``, "stubDomains: acme.local: no servers"},
		{`{"a {\n}": ["1.1.1.1"]}`, ``, "is not a domain name"},
		{`{"acme.local": ["1.1.1.1 {"]}`, ``, `stubDomains: acme.local: "1.1.1.1 {" is not a server`},
		{`{"acme.local": ["/etc/x\n}"]}`, ``, `is not a server`},
	} {
		if _, err := ParseKubeDNS(c.stub, c.up); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error %v, want %s", c.stub, c.up, err, c.want)
		}
	}
}
