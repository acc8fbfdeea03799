package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Template holds the values of node-cache's placeholders.
type Template struct {
	LocalIPs           []netip.Addr
	DNSPort            uint16
	ClusterDNS         netip.Addr // invalid if unknown
	ClusterDNSFrom     string     // environment variable of ClusterDNS, for the error
	ClusterDomain      string
	PrometheusEndpoint string
	KubeDNS            KubeDNS
}

// KubeDNS is the part of the kube-dns ConfigMap that node-cache uses. Servers have
// the syntax of forward: IP, IP:port, tls://IP or a file.
type KubeDNS struct {
	StubDomains         map[string][]string
	UpstreamNameservers []string
}

const (
	clusterDNSPlaceholder = "__PILLAR__CLUSTER__DNS__"
	upstreamPlaceholder   = "__PILLAR__UPSTREAM__SERVERS__"
	localDNSPlaceholder   = "__PILLAR__LOCAL__DNS__"
	dnsServerPlaceholder  = "__PILLAR__DNS__SERVER__"
	domainPlaceholder     = "__PILLAR__DNS__DOMAIN__"
	prometheusPlaceholder = "__PROMETHEUS__ENDPOINT__"
)

// Render replaces the placeholders in text, a base Corefile called name, and
// appends a server block for each stub domain, as node-cache does. Line numbers do
// not change.
func (t *Template) Render(name, text string) (string, error) {
	if line := lineOf(text, clusterDNSPlaceholder); line > 0 && !t.ClusterDNS.IsValid() {
		return "", &Error{File: name, Line: line, Err: fmt.Errorf("%s: %s is not set; name the upstream Service with -upstreamsvc, or write its address here", clusterDNSPlaceholder, t.ClusterDNSFrom)}
	}
	upstreams := "/etc/resolv.conf"
	if len(t.KubeDNS.UpstreamNameservers) > 0 {
		upstreams = strings.Join(t.KubeDNS.UpstreamNameservers, " ")
		text = withoutForceTCP(text)
	}
	local := t.locals()
	text = strings.NewReplacer(
		clusterDNSPlaceholder, t.ClusterDNS.String(),
		upstreamPlaceholder, upstreams,
		// Only one address can stand before a port: the first one.
		localDNSPlaceholder+":", firstHost(t.LocalIPs)+":",
		localDNSPlaceholder, local,
		dnsServerPlaceholder, "",
		domainPlaceholder, t.ClusterDomain,
		prometheusPlaceholder, t.PrometheusEndpoint,
	).Replace(text)
	return text + t.stubBlocks(local), nil
}

// lineOf returns the first line of text, from 1, that has s outside of a comment,
// or 0.
func lineOf(text, s string) int {
	n := 0
	for line := range strings.Lines(text) {
		n++
		code, _, _ := strings.Cut(line, "#")
		if strings.Contains(code, s) {
			return n
		}
	}
	return 0
}

// locals returns the local addresses as arguments of bind.
func (t *Template) locals() string {
	all := make([]string, len(t.LocalIPs))
	for i, ip := range t.LocalIPs {
		all[i] = ip.String()
	}
	return strings.Join(all, " ")
}

// firstHost returns the first address in the syntax HOST of HOST:PORT.
func firstHost(ips []netip.Addr) string {
	if len(ips) == 0 {
		return ""
	}
	return strings.TrimSuffix(net.JoinHostPort(ips[0].String(), ""), ":")
}

// withoutForceTCP removes force_tcp from forward directives to the upstream
// placeholder: servers in the ConfigMap are queried over UDP.
func withoutForceTCP(text string) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		code, _, _ := strings.Cut(line, "#")
		switch trimmed := strings.TrimSpace(code); {
		case strings.Contains(code, upstreamPlaceholder) && strings.HasSuffix(trimmed, "{"):
			inside = true
		case inside && trimmed == "}":
			inside = false
		case inside && trimmed == "force_tcp":
			line = "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// stubBlocks returns the server blocks of the stub domains, sorted by name.
func (t *Template) stubBlocks(local string) string {
	var b strings.Builder
	for _, domain := range slices.Sorted(maps.Keys(t.KubeDNS.StubDomains)) {
		fmt.Fprintf(&b, "\n%s:%d {\n    errors\n    cache 30\n", domain, t.DNSPort)
		if local != "" {
			fmt.Fprintf(&b, "    bind %s\n", local)
		}
		fmt.Fprintf(&b, "    forward . %s\n}\n", strings.Join(t.KubeDNS.StubDomains[domain], " "))
	}
	return b.String()
}

// ParseKubeDNS reads two values of the ConfigMap in the JSON of kube-dns: an object
// of domains to lists of servers, and a list of at most three servers. An empty text
// means that the key is absent.
func ParseKubeDNS(stubDomains, upstreamNameservers string) (KubeDNS, error) {
	var k KubeDNS
	var errs []error
	if strings.TrimSpace(stubDomains) != "" {
		if err := json.Unmarshal([]byte(stubDomains), &k.StubDomains); err != nil {
			errs = append(errs, fmt.Errorf("stubDomains: expected a JSON object of domains to lists of servers: %v", err))
		}
	}
	if strings.TrimSpace(upstreamNameservers) != "" {
		if err := json.Unmarshal([]byte(upstreamNameservers), &k.UpstreamNameservers); err != nil {
			errs = append(errs, fmt.Errorf("upstreamNameservers: expected a JSON list of servers: %v", err))
		}
	}
	if n := len(k.UpstreamNameservers); n > 3 {
		errs = append(errs, fmt.Errorf("upstreamNameservers: %d servers are too many, the maximum is 3", n))
	}
	for _, s := range k.UpstreamNameservers {
		errs = append(errs, checkServer("upstreamNameservers", s))
	}
	for _, domain := range slices.Sorted(maps.Keys(k.StubDomains)) {
		errs = append(errs, checkStubDomain(domain, k.StubDomains[domain]))
	}
	if err := errors.Join(errs...); err != nil {
		return KubeDNS{}, err
	}
	return k, nil
}

func checkStubDomain(domain string, servers []string) error {
	where := "stubDomains: " + domain
	if domain == "" || strings.ContainsAny(domain, " \t\n{}:\"#,()/") {
		return fmt.Errorf("stubDomains: %q is not a domain name", domain)
	}
	if len(servers) == 0 {
		return fmt.Errorf("%s: no servers", where)
	}
	var errs []error
	for _, s := range servers {
		errs = append(errs, checkServer(where, s))
	}
	return errors.Join(errs...)
}

// checkServer checks the syntax of a server for forward.
func checkServer(where, s string) error {
	host := strings.TrimPrefix(strings.TrimPrefix(s, "tls://"), "dns://")
	if name, _, ok := strings.Cut(host, "%"); ok && host != s {
		host = name // tls://IP%server.name
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}
	if ap, err := netip.ParseAddrPort(host); err == nil && ap.Port() != 0 {
		return nil
	}
	if strings.HasPrefix(s, "/") && !strings.ContainsAny(s, " \t\n{}\"#") {
		return nil
	}
	return fmt.Errorf("%s: %q is not a server: expected IP, IP:port, tls://IP or the path of a resolv.conf", where, s)
}
