package config

import (
	"errors"
	"slices"
	"strings"
)

// Directive is what there is to know of a directive without parsing one.
type Directive struct {
	Name    string
	Forms   []string // how it is written, without its options
	Options []string // how each option is written
	Summary string
	Differs string // from CoreDNS's directive of that name; empty: nothing to say

	own     bool // CoreDNS has none
	repeats bool // a block may have several, which add up
	last    bool // a block may have several, of which the last counts
	parse   func(b *Block, s statement) error

	// describe returns the values of each such directive in b, for Describe.
	describe func(b *Block) [][]string
}

// Directives returns the directives that Parse knows, in the order in which
// they act on a query: CoreDNS's, whatever the order in the Corefile. Those
// that do not act on queries stand in front, as they do there.
func Directives() []Directive {
	return slices.Concat(processDirectives(), queryDirectives(), answerDirectives())
}

// DirectiveNames returns the names of Directives in alphabetical order.
func DirectiveNames() []string {
	var names []string
	for _, d := range Directives() {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

// parseDirective adds what s says to b.
func parseDirective(b *Block, s statement) error {
	if d, ok := directive(s.text); ok {
		return d.parse(b, s)
	}
	return unknownDirective(s)
}

func directive(name string) (Directive, bool) {
	all := Directives()
	i := slices.IndexFunc(all, func(d Directive) bool { return d.Name == name })
	if i < 0 {
		return Directive{}, false
	}
	return all[i], true
}

// bare refuses arguments and options.
func bare(s statement) error {
	return errors.Join(s.arity(0, 0, ""), s.noBlock())
}

func parseLoop(b *Block, s statement) error {
	b.Loop = true
	return bare(s)
}

func parseSample(b *Block, s statement) error {
	b.Sample = true
	return bare(s)
}

func unknownDirective(s statement) error {
	if why, ok := refused()[s.text]; ok {
		return s.errorf("%s", why)
	}
	if guess := nearest(s.text, DirectiveNames()); guess != "" {
		return s.errorf("unknown directive, did you mean %s?", guess)
	}
	return s.errorf("unknown directive, known are: %s", strings.Join(DirectiveNames(), ", "))
}

// refused has the directives of CoreDNS that are not for a node's cache, and
// what to do instead.
func refused() map[string]string {
	const (
		elsewhere = "not for a node's cache: run it in CoreDNS and forward to it"
		plain     = "pods ask in plain DNS and it is not served over anything else: remove the line; upstreams may be tls://"
		remove    = "not supported: remove the line, "
	)
	all := map[string]string{
		"any":         remove + "and forward ANY to servers that answer it by RFC 8482",
		"cancel":      remove + "as a query ends after 4.5s by itself",
		"chaos":       remove + "the version is in the metric coredns_build_info",
		"dnstap":      remove + "and use log, or the metrics",
		"erratic":     remove + "faults are for tests of clients: run it in CoreDNS and forward to it",
		"geoip":       remove + "as all clients are on this node",
		"grpc":        "not supported: forward to these servers in DNS or tls://",
		"header":      remove + "as the flags of a reply follow from the query and upstream's answer",
		"local":       "not supported: answer localhost by hosts or template",
		"minimal":     remove + "and set it on the servers that are forwarded to",
		"multisocket": remove + "as there is a socket for each processor already",
		"on":          "commands are not run from a Corefile: remove the line",
		"proxy":       "unknown directive; CoreDNS itself has replaced it by forward",
		"proxyproto":  remove + "as clients are on this node and are seen by their own address",
		"root":        "not supported: write paths in full",
		"shed":        remove + "as queries above the limit of misses get SERVFAIL already",
		"shutdown":    "commands are not run from a Corefile: remove the line",
		"startup":     "commands are not run from a Corefile: remove the line",
		"trace":       "tracing is not built in: remove the line; log names each query with its duration, and /metrics has them as histograms",
		"view":        "not supported: write server blocks with a bind of their own",
	}
	for _, name := range []string{"grpc_server", "https", "https3", "quic", "tls"} {
		all[name] = plain
	}
	for _, name := range []string{
		"auto", "autopath", "azure", "clouddns", "dnssec", "etcd", "federation", "file", "k8s_external",
		"kubernetes", "nomad", "route53", "secondary", "sign", "transfer", "tsig",
	} {
		all[name] = elsewhere
	}
	return all
}
