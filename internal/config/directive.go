package config

import (
	"errors"
	"slices"
	"strings"
)

// Directive documents a directive and says how it is parsed and printed.
type Directive struct {
	Name    string
	Forms   []string // syntax without the options
	Options []string // syntax of each option
	Summary string
	Differs string // differences from the directive of CoreDNS; may be empty

	own     bool // CoreDNS does not have it
	repeats bool // a block may have several; all apply
	last    bool // a block may have several; the last applies
	parse   func(b *Block, s statement) error

	// describe returns the values of each such directive in b, for Describe.
	describe func(b *Block) [][]string
}

// Directives returns the directives that Parse knows, in the order in which they
// act on a query. It is the order of CoreDNS and does not depend on the Corefile.
// Directives that do not act on queries come first, as in CoreDNS.
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

// optionNames returns the names of the options, without values such as ADDRESS.
func (d Directive) optionNames() []string {
	var names []string
	for _, o := range d.Options {
		word, _, _ := strings.Cut(o, " ")
		if word == strings.ToLower(word) {
			names = append(names, strings.Split(word, "|")...)
		}
	}
	return names
}

// parseDirective stores the values of s in b.
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

// bare checks that s has no arguments and no options.
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
	if guess := Nearest(s.text, DirectiveNames()); guess != "" {
		return s.errorf("unknown directive, did you mean %s?", guess)
	}
	return s.errorf("unknown directive, expected one of: %s", strings.Join(DirectiveNames(), ", "))
}

// refused returns the directives of CoreDNS that nodens does not have, and what to
// do instead.
func refused() map[string]string {
	const (
		elsewhere = "not part of a node cache: run it in CoreDNS and forward to CoreDNS"
		plain     = "nodens serves plain DNS only: remove the line; upstreams may be tls://"
		remove    = "not supported: remove the line, "
	)
	all := map[string]string{
		"any":         remove + "and forward ANY to servers that implement RFC 8482",
		"cancel":      remove + "because every query ends after 4.5s",
		"chaos":       remove + "and read the version from the metric coredns_build_info",
		"erratic":     remove + "and run it in CoreDNS to test clients",
		"geoip":       remove + "because all clients are on this node",
		"grpc":        "not supported: forward to these servers by plain DNS or tls://",
		"header":      remove + "because nodens sets the flags of a reply from the query and the upstream's reply",
		"local":       "not supported: answer localhost with hosts or template",
		"minimal":     remove + "and use it on the upstreams",
		"multisocket": remove + "because nodens opens a socket for each processor",
		"on":          "nodens runs no commands: remove the line",
		"proxy":       "unknown directive: use forward, which replaced it in CoreDNS",
		"proxyproto":  remove + "because clients are on this node and nodens sees their addresses",
		"root":        "not supported: write full paths",
		"shed":        remove + "because queries above the limit of misses get SERVFAIL",
		"shutdown":    "nodens runs no commands: remove the line",
		"startup":     "nodens runs no commands: remove the line",
		"trace":       "tracing is not supported: remove the line; log has the duration of each query, and /metrics has histograms",
		"view":        "not supported: use server blocks with different bind addresses",
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
