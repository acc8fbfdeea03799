package config

import "strings"

// processDirectives say how the process and its listeners work.
func processDirectives() []Directive {
	return []Directive{
		{
			Name: "metadata", Forms: []string{"metadata [ZONE…]"}, parse: parseMetadata,
			Summary:  "Know {/log/type} and {/log/class} in formats of log.",
			describe: func(b *Block) [][]string { return ifSet(b.Metadata, "log") },
			Differs:  "There is no other metadata: {/…} is - and .Meta of templates empty.",
		},
		{
			Name: "timeouts", Forms: []string{"timeouts"}, parse: parseTimeouts,
			Options:  []string{"read DURATION", "idle DURATION", "write DURATION", "maxtcpqueries NUMBER"},
			Summary:  "Bound the waits for a TCP client, by default 10s for a query and 5s for it to take a reply.",
			describe: func(b *Block) [][]string { return each(b.Timeouts) },
			Differs:  "Each bound covers a whole query or reply.",
		},
		{
			Name: "reload", Forms: []string{"reload [INTERVAL [JITTER]]"}, parse: parseReload,
			Summary:  "Look for changes of the Corefile and of the files it imports.",
			describe: func(b *Block) [][]string { return each(b.Reload) },
			Differs:  "Changes are noticed at once where the file system tells; INTERVAL 0 leaves reloading to signals.",
		},
		{
			Name: "nsid", Forms: []string{"nsid [TEXT…]"}, parse: parseNSID,
			Summary:  "Tell clients that ask for it (RFC 5001) who answers: TEXT, or the name of the host.",
			describe: func(b *Block) [][]string { return each(b.NSID) },
			Differs:  "TEXT has at most 128 octets.",
		},
		{
			Name: "bufsize", Forms: []string{"bufsize [SIZE]"}, parse: parseBufSize, last: true,
			Summary:  "Send no replies of more octets than SIZE over UDP; 1232 without it.",
			describe: func(b *Block) [][]string { return each(b.BufSize) },
			Differs:  "Replies never exceed 1232 octets (RFC 9715): a larger SIZE changes nothing. Upstreams are always asked for 1232.",
		},
		{
			Name: "bind", Forms: []string{"bind ADDRESS|INTERFACE…"}, parse: parseBind, repeats: true,
			Options:  []string{"except ADDRESS…"},
			Summary:  "Serve the block on these addresses instead of on all.",
			describe: func(b *Block) [][]string { return [][]string{b.describeBind()} },
			Differs:  "except takes addresses only, and stands beside no second bind.",
		},
		{
			Name: "redirect", Forms: []string{"redirect [off|auto|on]"}, parse: parseRedirect, own: true,
			Options: []string{
				"target [ADDRESS][:PORT]…", "service ADDRESS[:PORT]…", "fallback ADDRESS[:PORT]…", "kubepods DIRECTORY",
				"heartbeat DURATION", "opt_out NAMESPACE[/POD]…", "uplink INTERFACE…",
			},
			Summary:  "Redirect the sockets of pods, which then reach the daemon past the CNI, and a fallback while it does not answer.",
			describe: func(b *Block) [][]string { return each(b.Redirect) },
			Differs:  "CoreDNS has none.",
		},
		{
			Name: "debug", Forms: []string{"debug"}, parse: parseDebug, last: true,
			Summary:  "Log at level debug, for the process as a whole.",
			describe: func(b *Block) [][]string { return ifSet(b.Debug, "on") },
			Differs:  "A panic is still survived; its stack is logged either way.",
		},
		{
			Name: "ready", Forms: []string{"ready [HOST:PORT]"}, parse: parseReady,
			Options:  []string{"monitor until-ready|continuously"},
			Summary:  "Answer 200 on /ready, by default of :8181, once queries are answered, and 503 from SIGTERM on.",
			describe: func(b *Block) [][]string { return each(b.Ready) },
			Differs:  "Readiness does not depend on plugins, so that both words of monitor mean the same.",
		},
		{
			Name: "health", Forms: []string{"health [HOST:PORT]"}, parse: parseHealth, last: true,
			Options:  []string{"lameduck DURATION"},
			Summary:  "Answer 200 on /health, by default of :8080, as long as the process serves.",
			describe: func(b *Block) [][]string { return each(b.Health) },
			Differs:  "Several blocks may name the same address.",
		},
		{
			Name: "pprof", Forms: []string{"pprof [HOST:PORT]"}, parse: parsePprof,
			Options:  []string{"block [RATE]"},
			Summary:  "Offer profiles on /debug/pprof/, by default of localhost:6053.",
			describe: func(b *Block) [][]string { return each(b.Pprof) },
		},
		{
			Name: "prometheus", Forms: []string{"prometheus [HOST:PORT]"}, parse: parsePrometheus,
			Summary:  "Offer metrics on /metrics, by default of localhost:9153.",
			describe: func(b *Block) [][]string { return each(b.Prometheus) },
			Differs:  "Metrics cover all blocks, not only those with the directive. No tls option.",
		},
	}
}

// queryDirectives watch or change queries and replies.
func queryDirectives() []Directive {
	return []Directive{
		{
			Name: "errors", Forms: []string{"errors [stdout]"}, parse: parseErrors,
			Options:  []string{"consolidate DURATION REGEXP [LEVEL] [show_first]", "stacktrace"},
			Summary:  "Log queries that could not be answered.",
			describe: func(b *Block) [][]string { return each(b.Errors) },
			Differs:  "The line has the cause of each upstream tried. The stack of a panic is logged without stacktrace as well.",
		},
		{
			Name: "log", Forms: []string{"log [NAME…]", "log NAME… FORMAT"}, parse: parseLog, repeats: true,
			Options:  []string{"class all|success|denial|error…"},
			Summary:  "Log queries and their replies.",
			describe: func(b *Block) [][]string { return each(b.Log...) },
			Differs:  "Without FORMAT, lines are key=value pairs; {common} is CoreDNS's. Of {size} and {>bufsize}, the values are those of the query as it came, of {rsize} that of the reply as it leaves.",
		},
		{
			Name: "dns64", Forms: []string{"dns64 [PREFIX]"}, parse: parseDNS64, last: true,
			Options:  []string{"prefix PREFIX", "translate_all", "allow_ipv4"},
			Summary:  "Make AAAA records of A records for names without AAAA (RFC 6147), for clients that ask over IPv6.",
			describe: func(b *Block) [][]string { return each(b.DNS64) },
			Differs:  "Queries with CD are left alone (RFC 6147, section 5.5); if neither type is answered, that stays a failure; mapped IPv4 addresses do not count as AAAA (section 5.1.4).",
		},
		{
			Name: "loadbalance", Forms: []string{"loadbalance [round_robin]"}, parse: parseLoadBalance, last: true,
			Options:  []string{"prefer NETWORK…"},
			Summary:  "Give the addresses and the MX records of a reply in random order.",
			describe: func(b *Block) [][]string { return each(b.LoadBalance) },
			Differs:  "No weighted. The zone's replies leave the fast path.",
		},
		{
			Name: "rewrite", parse: parseRewrite, repeats: true,
			Forms: []string{
				"rewrite [continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [answer auto] [answer name|value FROM TO]…",
				"rewrite [continue|stop] type|class FROM TO",
				"rewrite [continue|stop] ttl [exact|prefix|suffix|substring|regex] NAME SECONDS|MIN-MAX",
				"rewrite [continue|stop] rcode [exact|prefix|suffix|substring|regex] NAME FROM TO",
				"rewrite [continue|stop] cname [exact|prefix|suffix|substring|regex] FROM TO",
				"rewrite [continue|stop] edns0 local set|append|replace CODE DATA|{VARIABLE} [revert]",
				"rewrite [continue|stop] edns0 nsid set|append|replace [revert]",
				"rewrite [continue|stop] edns0 subnet set|append|replace IPV4-BITS IPV6-BITS [revert]",
				"rewrite [continue|stop] edns0 local CODE|nsid|subnet unset",
			},
			Summary:  "Ask something else than the client did, and make the reply fit its question.",
			describe: func(b *Block) [][]string { return each(b.Rewrites...) },
			Differs:  "No metadata variables. As in CoreDNS, FROM of name, ttl and rcode with prefix and substring ends with a dot, so that it stands for whole labels at its end. The new target of a cname rule is looked up past rewrite and acl. The class of version.bind is not rewritten. Of the client's own OPT record, upstream sees only options that a rule names. Answers that depend on an option which tells who asks are not cached. The OPT record is no record whose TTL is bounded. AD is cleared.",
		},
		{
			Name: "acl", Forms: []string{"acl [ZONE…]"}, parse: parseACL, repeats: true,
			Options:  []string{"allow|block|filter|drop [type TYPE…] [net NETWORK…]"},
			Summary:  "Decide who may ask what. The first policy that covers a query decides.",
			describe: func(b *Block) [][]string { return each(b.ACL...) },
			Differs:  "Types are taken in either case.",
		},
		{
			Name: "normalize", Forms: []string{"normalize [SUFFIX…]"}, parse: parseNormalize, own: true,
			Options: []string{
				"mode off|observe|sibling", "signature bare|any", "sibling_timeout DURATION", "ttl DURATION",
				"except ZONE…", "repair on|off",
			},
			Summary:  "Answer NXDOMAIN where upstream answers empty for names that do not exist.",
			describe: func(b *Block) [][]string { return each(b.Normalize) },
			Differs:  "CoreDNS has none.",
		},
		{
			Name: "cache", Forms: []string{"cache [TTL] [ZONE…]"}, parse: parseCache,
			Options: []string{
				"success CAPACITY [TTL [MINTTL]]", "denial CAPACITY [TTL [MINTTL]]",
				"prefetch AMOUNT [DURATION [PERCENTAGE%]]", "serve_stale [DURATION [immediate|verify]]",
				"servfail DURATION", "disable success|denial [ZONE…]", "keepttl",
			},
			Summary:  "Keep answers.",
			describe: func(b *Block) [][]string { return each(b.Cache) },
			Differs:  "All blocks share one budget of memory; equal questions are asked upstream once. Each RRset keeps its own TTL; TTL 0 is raised only if a MINTTL is given, and else not cached, nor are ANY and a CNAME without its target. Denials without SOA are kept for 5s at most, failures for 1s at first and twice as long each time, up to servfail. Without ZONE also what a rewrite has led out of the block's zones is cached.",
		},
	}
}

// answerDirectives answer queries. They are asked in this order until one does.
func answerDirectives() []Directive {
	return []Directive{
		{
			Name: "template", Forms: []string{"template CLASS TYPE [ZONE…]"}, parse: parseTemplate, repeats: true,
			Options: []string{
				"match REGEXP…", "answer RECORD…", "authority RECORD…", "additional RECORD…", "rcode RCODE",
				"ederror CODE [TEXT]", "fallthrough [ZONE…]",
			},
			Summary:  "Answer with records made by Go templates of the question.",
			describe: func(b *Block) [][]string { return each(b.Templates...) },
			Differs:  "CLASS, TYPE and RCODE are taken in either case. .Message is the question as upstreams are asked it; .Meta is always empty. Answers with an ederror or made of .Remote are not cached. The target of a CNAME is followed at most 8 times, past rewrite and acl.",
		},
		{
			Name: "hosts", Forms: []string{"hosts [FILE [ZONE…]]"}, parse: parseHosts,
			Options:  []string{"ADDRESS NAME…", "ttl SECONDS", "no_reverse", "reload DURATION", "fallthrough [ZONE…]", "fallthrough_unsupported"},
			Summary:  "Answer A, AAAA and PTR from a hosts file, by default /etc/hosts, and from the lines of the block.",
			describe: func(b *Block) [][]string { return each(b.Hosts) },
			Differs:  "Changes of the file are noticed at once where the file system tells.",
		},
		{
			Name: "sample", Forms: []string{"sample"}, parse: parseSample, own: true,
			Summary:  "Answer from a sample of a cluster's zone, to try the program out.",
			describe: func(b *Block) [][]string { return ifSet(b.Sample, "embedded zone") },
			Differs:  "CoreDNS has none.",
		},
		{
			Name: "loop", Forms: []string{"loop"}, parse: parseLoop,
			Summary:  "Find out at start-up, and when upstreams change, whether queries come back.",
			describe: func(b *Block) [][]string { return ifSet(b.Loop, "detection on") },
			Differs:  "A loop is logged and counted, and its queries get SERVFAIL; the process does not end.",
		},
		{
			Name: "forward", Forms: []string{"forward FROM TO…"}, parse: parseForward, repeats: true,
			Options: []string{
				"except ZONE…", "force_tcp", "prefer_udp", "policy random|round_robin|sequential", "max_fails NUMBER",
				"expire DURATION", "health_check DURATION [no_rec] [domain NAME]", "max_concurrent NUMBER",
				"tls [CERT KEY] [CA]", "tls_servername NAME", "kubernetes_endpoints",
			},
			Summary:  "Ask other servers: addresses, tls://addresses, or those of a resolv.conf. With kubernetes_endpoints, the endpoints of the cluster's DNS, and TO only while none is known.",
			describe: func(b *Block) [][]string { return each(b.Forwards...) },
			Differs:  "The resolv.conf is followed; of the client's OPT record DO alone is passed on. UDP comes first for all clients, as with prefer_udp, and TCP when a reply is cut. Other rcodes of upstream than NOERROR, NXDOMAIN and YXDOMAIN become SERVFAIL, and so does what max_concurrent turns away. A health_check of 0s is refused. Refused: " + strings.Join(laterForwardOptions(), ", ") + ".",
		},
		{
			Name: "whoami", Forms: []string{"whoami"}, parse: parseWhoami, last: true,
			Summary:  "Answer everything with the client's address, port and protocol.",
			describe: func(b *Block) [][]string { return ifSet(b.Whoami, "on") },
			Differs:  "Answers are not cached, as each client gets its own.",
		},
	}
}
