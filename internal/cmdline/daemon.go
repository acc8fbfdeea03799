package cmdline

import (
	"fmt"

	"github.com/nodens-dns/nodens/internal/config"
)

// Group is a heading of the daemon's help text and the flags under it.
type Group struct {
	Title string
	Names []string
}

// Daemon has the flags of the daemon, in the order of its help text. A test of
// cmd/nodens checks that each flag is in one group.
var Daemon = []Group{
	{"Configuration", []string{"conf", "corefile", "basecorefile", "kubednscm", "upstreamsvc", "cluster-domain", "reloadwithsignal"}},
	{"Addresses and ports", []string{"localip", "dns.port", "p", "health-port", "prometheus-listen-address", "metrics-listen-address", "status-address", "status-token-file"}},
	{"Host", []string{"setupinterface", "interfacename", "setupiptables", "syncinterval", "skipteardown", "pidfile"}},
	{"Redirection", []string{"kubepods", "redirect-pin-dir", "pod-logs", "node-ip"}},
	{"API server", []string{"endpoints-of", "zone", "service-account"}},
	{"Cache", []string{"cache-size", "cache-snapshot"}},
	{"Upstream", []string{"hedge"}},
	{"Clients", []string{"clients", "max-misses", "max-misses-per-client", "max-tcp-connections", "max-tcp-connections-per-client"}},
	{"Log", []string{"log-format", "log-level", "quiet"}},
	{"Other", []string{"supervise", "keep-privileges", "version", "plugins"}},
}

// removed maps each removed flag to the Corefile text that replaces it.
var removed = map[string]string{
	"redirect":           "redirect auto",
	"redirect-target":    "redirect auto { target … }",
	"redirect-service":   "redirect auto { service … }",
	"redirect-fallback":  "redirect auto { fallback … }",
	"redirect-opt-out":   "redirect auto { opt_out … }",
	"redirect-uplink":    "redirect auto { uplink … }",
	"redirect-heartbeat": "redirect auto { heartbeat … }",
}

// InsteadOf says what replaces a removed flag of the daemon, or returns "".
func InsteadOf(flag string) string {
	if text, ok := removed[flag]; ok {
		return fmt.Sprintf("write %q into a server block of the Corefile, see docs/cilium.md", text)
	}
	return ""
}

// DirectiveHint names the directive that an unknown flag seems to mean, or returns "".
func DirectiveHint(flag string) string {
	if d := config.DirectiveIn(flag); d != "" {
		return "settings of " + d + " are in the Corefile, see docs/corefile.md"
	}
	return ""
}
