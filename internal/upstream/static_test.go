package upstream

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func TestSample(t *testing.T) {
	s, err := Sample()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		q     string
		qtype uint16
		want  string
	}{
		{"kubernetes.default.svc.cluster.local.", dns.TypeA, "NOERROR A 10.96.0.1"},
		{"Kubernetes.Default.SVC.cluster.local.", dns.TypeA, "NOERROR A 10.96.0.1"},
		{"kubernetes.default.svc.cluster.local.", dns.TypeAAAA, "NOERROR +SOA"},
		{"_https._tcp.kubernetes.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR SRV 0 100 443 kubernetes.default.svc.cluster.local. +A"},
		{"kube-dns.kube-system.svc.cluster.local.", dns.TypeA, "NOERROR A 10.96.0.10"},
		{"_dns._udp.kube-dns.kube-system.svc.cluster.local.", dns.TypeSRV,
			"NOERROR SRV 0 100 53 kube-dns.kube-system.svc.cluster.local. +A"},
		{"_dns-tcp._tcp.kube-dns.kube-system.svc.cluster.local.", dns.TypeSRV,
			"NOERROR SRV 0 100 53 kube-dns.kube-system.svc.cluster.local. +A"},
		{"_metrics._tcp.kube-dns.kube-system.svc.cluster.local.", dns.TypeSRV,
			"NOERROR SRV 0 100 9153 kube-dns.kube-system.svc.cluster.local. +A"},
		{"web.default.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.0.5 A 10.244.1.6"},
		{"_http._tcp.web.default.svc.cluster.local.", dns.TypeSRV,
			"NOERROR SRV 0 50 80 web-0.web.default.svc.cluster.local. SRV 0 50 80 10-244-1-6.web.default.svc.cluster.local. +A +A"},
		{"web-0.web.default.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.0.5"},
		{"10-244-1-6.web.default.svc.cluster.local.", dns.TypeA, "NOERROR A 10.244.1.6"},
		{"dns-version.cluster.local.", dns.TypeTXT, `NOERROR TXT "1.1.0"`},
		{"cluster.local.", dns.TypeSOA,
			"NOERROR SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30"},
		{"cluster.local.", dns.TypeA, "NOERROR +SOA"},
		// Empty non-terminals.
		{"svc.cluster.local.", dns.TypeA, "NOERROR +SOA"},
		{"default.svc.cluster.local.", dns.TypeA, "NOERROR +SOA"},
		{"_tcp.web.default.svc.cluster.local.", dns.TypeSRV, "NOERROR +SOA"},
		{"0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR +SOA"},
		// Pods.
		{"10-244-0-5.default.pod.cluster.local.", dns.TypeA, "NOERROR A 10.244.0.5"},
		{"10-1-2-3.any.pod.cluster.local.", dns.TypeA, "NOERROR A 10.1.2.3"},
		{"10-1-2-3.any.pod.cluster.local.", dns.TypeAAAA, "NOERROR +SOA"},
		{"2001-db8--1.any.pod.cluster.local.", dns.TypeAAAA, "NOERROR AAAA 2001:db8::1"},
		{"10-1-2-256.any.pod.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"host.any.pod.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"10-1-2-3.a.b.pod.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"10-1-2-3.any.pod.96.10.in-addr.arpa.", dns.TypeA, "NXDOMAIN +SOA"},
		{"pod.cluster.local.", dns.TypeA, "NOERROR +SOA"},
		{"default.pod.cluster.local.", dns.TypeA, "NOERROR +SOA"},
		{"nobody.pod.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		// Unknown.
		{"nobody.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"x.kubernetes.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"nobody.svc.cluster.local.", dns.TypeA, "NXDOMAIN +SOA"},
		{"a.cluster.local.", dns.TypeMX, "NXDOMAIN +SOA"},
		// Reverse.
		{"1.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR kubernetes.default.svc.cluster.local."},
		{"10.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR kube-dns.kube-system.svc.cluster.local."},
		{"5.0.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR web-0.web.default.svc.cluster.local."},
		{"6.1.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR PTR 10-244-1-6.web.default.svc.cluster.local."},
		{"9.9.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN +SOA"},
		// Others'.
		{"example.org.", dns.TypeA, "not mine"},
		{"local.", dns.TypeA, "not mine"},
		{"notcluster.local.", dns.TypeA, "not mine"},
		{"1.0.95.10.in-addr.arpa.", dns.TypePTR, "not mine"},
	}
	for _, tt := range tests {
		m, err := s.Exchange(context.Background(), asking(tt.q, tt.qtype))
		if got := outcome(m, err); got != tt.want {
			t.Errorf("%s %s:\n got %s\nwant %s", tt.q, dns.TypeToString[tt.qtype], got, tt.want)
		}
		if err != nil {
			continue
		}
		for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
			if rr.Header().Ttl != 30 {
				t.Errorf("%s: TTL of %v", tt.q, rr)
			}
		}
		if len(m.Answer) > 0 && m.Answer[0].Header().Name != tt.q {
			t.Errorf("%s: owner %s", tt.q, m.Answer[0].Header().Name)
		}
		if _, err := m.Pack(); err != nil {
			t.Errorf("%s: %v", tt.q, err)
		}
	}
	if got := s.Origins(); !slices.Equal(slices.Sorted(slices.Values(got)),
		[]string{"244.10.in-addr.arpa.", "96.10.in-addr.arpa.", "cluster.local."}) {
		t.Errorf("origins %v", got)
	}
}

func TestSampleAnswersAreCopies(t *testing.T) {
	s, err := Sample()
	if err != nil {
		t.Fatal(err)
	}
	q := asking("_https._tcp.kubernetes.default.svc.cluster.local.", dns.TypeSRV)
	for range 2 {
		m, err := s.Exchange(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, rr := range append(m.Answer, m.Extra...) {
			if rr.Header().Ttl != 30 {
				t.Fatalf("a caller's change has an effect: %v", rr)
			}
			rr.Header().Ttl = 1
		}
	}
}

func TestNewStaticErrors(t *testing.T) {
	rr, err := dns.NewRR("a.example. 60 IN A 192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		zone    []dns.RR
		origins []string
		want    string
	}{
		"no origin":  {nil, nil, "no origin"},
		"bad origin": {nil, []string{"a..b."}, "a..b."},
		"empty":      {nil, []string{""}, "not a domain name"},
		"outside":    {[]dns.RR{rr}, []string{"example.org."}, "a.example."},
		"nil record": {[]dns.RR{nil}, []string{"."}, "nil record"},
	} {
		if _, err := NewStatic(tt.zone, tt.origins); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v does not say %q", name, err, tt.want)
		}
	}
	s, err := NewStatic([]dns.RR{rr}, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	if got := outcome(s.Exchange(t.Context(), asking("a.example.", dns.TypeA))); got != "NOERROR A 192.0.2.1" {
		t.Errorf("root zone: %s", got)
	}
	if got := outcome(s.Exchange(t.Context(), asking("example.", dns.TypeA))); got != "NOERROR +SOA" {
		t.Errorf("root zone: %s", got)
	}
}
