package config

import (
	"errors"
	"slices"
	"strings"
)

// directiveNames returns the names of the directives that Parse knows, in
// alphabetical order.
func directiveNames() []string {
	return []string{
		"bind", "cache", "errors", "forward", "health", "hosts", "log", "loop",
		"normalize", "prometheus", "ready", "reload", "sample",
	}
}

// parseDirective adds what s says to b.
func parseDirective(b *Block, s statement) error {
	switch s.text {
	case "bind":
		return parseBind(b, s)
	case "cache":
		return parseCache(b, s)
	case "errors":
		return parseErrors(b, s)
	case "forward":
		return parseForward(b, s)
	case "health":
		return parseHealth(b, s)
	case "hosts":
		return parseHosts(b, s)
	case "log":
		return parseLog(b, s)
	case "loop":
		b.Loop = true
		return bare(s)
	case "normalize":
		return parseNormalize(b, s)
	case "prometheus":
		return parsePrometheus(b, s)
	case "ready":
		return parseReady(b, s)
	case "reload":
		return parseReload(b, s)
	case "sample":
		b.Sample = true
		return bare(s)
	}
	return unknownDirective(s)
}

// bare refuses arguments and options.
func bare(s statement) error {
	return errors.Join(s.arity(0, 0, ""), s.noBlock())
}

// repeatable directives add up when a block has several; of all others a
// second one is refused.
func repeatable(name string) bool {
	return name == "bind" || name == "forward" || name == "log"
}

func unknownDirective(s statement) error {
	switch name := s.text; {
	case slices.Contains(authoritative(), name):
		return s.errorf("not for a node's cache: run it in CoreDNS and forward to it")
	case name == "proxy":
		return s.errorf("unknown directive; CoreDNS itself has replaced it by forward")
	case slices.Contains(unsupported(), name):
		return s.errorf("this directive of CoreDNS is not supported yet")
	default:
		if guess := nearest(name, directiveNames()); guess != "" {
			return s.errorf("unknown directive, did you mean %s?", guess)
		}
		return s.errorf("unknown directive, known are: %s", strings.Join(directiveNames(), ", "))
	}
}

// authoritative are CoreDNS's directives that answer from data of their own.
func authoritative() []string {
	return []string{
		"auto", "autopath", "azure", "clouddns", "dnssec", "etcd", "federation", "file",
		"grpc_server", "k8s_external", "kubernetes", "nomad", "route53", "secondary",
		"sign", "transfer", "tsig",
	}
}

// unsupported are the other directives of CoreDNS.
func unsupported() []string {
	return []string{
		"acl", "any", "bufsize", "cancel", "chaos", "debug", "dns64", "dnstap",
		"erratic", "geoip", "grpc", "header", "https", "https3", "loadbalance",
		"local", "metadata", "minimal", "multisocket", "nsid", "on", "pprof",
		"proxyproto", "quic", "rewrite", "root", "shutdown", "startup", "template",
		"timeouts", "tls", "trace", "view", "whoami",
	}
}
