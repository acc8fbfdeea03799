package config

import "strings"

// processDirectives configure the process and its listeners.
func processDirectives() []Directive {
	return []Directive{
		{
			Name: "metadata", Forms: []string{"metadata [ZONE…]"}, parse: parseMetadata,
			Summary:  "Fill in {/log/type} and {/log/class} in the formats of log.",
			describe: func(b *Block) [][]string { return ifSet(b.Metadata, "log") },
			Differs:  "There is no other metadata: any other {/…} prints -, and .Meta is empty in templates.",
		},
		{
			Name: "timeouts", Forms: []string{"timeouts"}, parse: parseTimeouts,
			Options:  []string{"read DURATION", "idle DURATION", "write DURATION", "maxtcpqueries NUMBER"},
			Summary:  "Set the timeouts of TCP clients. By default, a client has 10s to send a query and 5s to receive a reply.",
			describe: func(b *Block) [][]string { return each(b.Timeouts) },
			Differs:  "Each timeout covers a whole query or reply.",
		},
		{
			Name: "reload", Forms: []string{"reload [INTERVAL [JITTER]]"}, parse: parseReload,
			Summary:  "Reload the Corefile when it, or a file that it imports, changes.",
			describe: func(b *Block) [][]string { return each(b.Reload) },
			Differs:  "A change takes effect at once on file systems that report changes. With INTERVAL 0, only a signal reloads.",
		},
		{
			Name: "nsid", Forms: []string{"nsid [TEXT…]"}, parse: parseNSID,
			Summary:  "Send the name server identifier (RFC 5001) to clients that request it: TEXT, or the host name.",
			describe: func(b *Block) [][]string { return each(b.NSID) },
			Differs:  "TEXT has at most 128 bytes.",
		},
		{
			Name: "bufsize", Forms: []string{"bufsize [SIZE]"}, parse: parseBufSize, last: true,
			Summary:  "Limit UDP replies to SIZE bytes; the default is 1232.",
			describe: func(b *Block) [][]string { return each(b.BufSize) },
			Differs:  "UDP replies never exceed 1232 bytes (RFC 9715), so a larger SIZE has no effect. Queries to upstreams always advertise 1232.",
		},
		{
			Name: "bind", Forms: []string{"bind ADDRESS|INTERFACE…"}, parse: parseBind, repeats: true,
			Options:  []string{"except ADDRESS…"},
			Summary:  "Serve the block on these addresses only. By default, it is served on all.",
			describe: func(b *Block) [][]string { return [][]string{b.describeBind()} },
			Differs:  "except takes addresses only, and a block with except has one bind.",
		},
		{
			Name: "redirect", Forms: []string{"redirect [off|auto|on]"}, parse: parseRedirect, own: true,
			Options: []string{
				"target [ADDRESS][:PORT]…", "service ADDRESS[:PORT]…", "fallback ADDRESS[:PORT]…",
				"heartbeat DURATION", "opt_out NAMESPACE[/POD]…", "uplink INTERFACE…",
			},
			Summary:  "Redirect the sockets of pods to nodens past the CNI, and to a fallback while nodens does not answer.",
			describe: func(b *Block) [][]string { return each(b.Redirect) },
			Differs:  "CoreDNS does not have this directive.",
		},
		{
			Name: "fastpath", Forms: []string{"fastpath [auto|on|off]"}, parse: parseFastpath, own: true,
			Options:  []string{"entries NUMBER", "lease DURATION", "opt_out NAMESPACE[/POD]…"},
			Summary:  "Let the kernel answer queries of pods from a copy of the cache. See fastpath.md. With auto, nodens answers by itself if the node cannot do this; with on, that is an error in the log.",
			describe: func(b *Block) [][]string { return each(b.Fastpath) },
			Differs:  "CoreDNS does not have this directive.",
		},
		{
			Name: "debug", Forms: []string{"debug"}, parse: parseDebug, last: true,
			Summary:  "Log at level debug. This applies to the whole process.",
			describe: func(b *Block) [][]string { return ifSet(b.Debug, "on") },
			Differs:  "nodens recovers from a panic and logs its stack, with or without debug.",
		},
		{
			Name: "ready", Forms: []string{"ready [HOST:PORT]"}, parse: parseReady,
			Options:  []string{"monitor until-ready|continuously"},
			Summary:  "Serve /ready, by default on :8181: 200 once nodens answers queries, 503 from SIGTERM on.",
			describe: func(b *Block) [][]string { return each(b.Ready) },
			Differs:  "Readiness does not depend on plugins, so both values of monitor mean the same.",
		},
		{
			Name: "health", Forms: []string{"health [HOST:PORT]"}, parse: parseHealth, last: true,
			Options:  []string{"lameduck DURATION"},
			Summary:  "Serve /health, by default on :8080: 200 while the process serves.",
			describe: func(b *Block) [][]string { return each(b.Health) },
			Differs:  "Several blocks may use the same address.",
		},
		{
			Name: "pprof", Forms: []string{"pprof [HOST:PORT]"}, parse: parsePprof,
			Options:  []string{"block [RATE]"},
			Summary:  "Serve profiles on /debug/pprof/, by default on localhost:6053.",
			describe: func(b *Block) [][]string { return each(b.Pprof) },
		},
		{
			Name: "prometheus", Forms: []string{"prometheus [HOST:PORT]"}, parse: parsePrometheus,
			Summary:  "Serve metrics on /metrics, by default on localhost:9153.",
			describe: func(b *Block) [][]string { return each(b.Prometheus) },
			Differs:  "Metrics cover all blocks, not only those with the directive. There is no tls option.",
		},
	}
}

// queryDirectives observe or change queries and replies.
func queryDirectives() []Directive {
	return []Directive{
		{
			Name: "errors", Forms: []string{"errors [stdout]"}, parse: parseErrors,
			Options:  []string{"consolidate DURATION REGEXP [LEVEL] [show_first]", "stacktrace"},
			Summary:  "Log queries that fail.",
			describe: func(b *Block) [][]string { return each(b.Errors) },
			Differs:  "In each zone, the first failure is logged at once, and then a summary with a count and an example every 10s while failures go on. Failures that a consolidate rule matches are not part of it. The line has the error of each upstream that was tried. The stack of a panic is logged even without stacktrace.",
		},
		{
			Name: "log", Forms: []string{"log [NAME…]", "log NAME… FORMAT"}, parse: parseLog, repeats: true,
			Options:  []string{"class all|success|denial|error…"},
			Summary:  "Log queries and their replies.",
			describe: func(b *Block) [][]string { return each(b.Log...) },
			Differs:  "Without FORMAT, lines are key=value pairs; {common} is the format of CoreDNS. {size} and {>bufsize} are those of the query as received, {rsize} that of the reply as sent.",
		},
		{
			Name: "dnstap", Forms: []string{"dnstap SOCKET [full]"}, parse: parseDnstap, repeats: true,
			Options:  []string{"identity IDENTITY", "version VERSION", "extra TEXT", "skipverify"},
			Summary:  "Send the queries and replies of clients and upstreams to a dnstap reader at PATH, unix://PATH, tcp://HOST:PORT or tls://HOST:PORT.",
			describe: func(b *Block) [][]string { return each(b.Dnstap...) },
			Differs:  "A slow reader never delays a query: up to 1/64 of the memory limit, at most 4 MiB, waits for all readers; further messages are dropped and counted in nodens_dnstap_messages_total. nodens sends the messages to upstreams as they are on the wire, and also the zone and its own address. extra has no labels; listen, writebuffer and queue are refused. Replies of the block do not use the fast path.",
		},
		{
			Name: "dns64", Forms: []string{"dns64 [PREFIX]"}, parse: parseDNS64, last: true,
			Options:  []string{"prefix PREFIX", "translate_all", "allow_ipv4"},
			Summary:  "Synthesize AAAA records from A records for names without AAAA (RFC 6147), for clients that send queries over IPv6.",
			describe: func(b *Block) [][]string { return each(b.DNS64) },
			Differs:  "Queries with the CD bit are not changed (RFC 6147, section 5.5). If the lookups of both types fail, the reply is the failure. IPv4-mapped addresses do not count as AAAA (section 5.1.4).",
		},
		{
			Name: "loadbalance", Forms: []string{"loadbalance [round_robin]"}, parse: parseLoadBalance, last: true,
			Options:  []string{"prefer NETWORK…"},
			Summary:  "Put the address and MX records of a reply into random order.",
			describe: func(b *Block) [][]string { return each(b.LoadBalance) },
			Differs:  "There is no weighted policy. Replies of the block do not use the fast path.",
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
			Summary:  "Change the query before it is answered, and change the reply to match the client's question.",
			describe: func(b *Block) [][]string { return each(b.Rewrites...) },
			Differs:  "There are no metadata variables. As in CoreDNS, FROM of name, ttl and rcode rules with prefix or substring gets a final dot, so its last label matches as a whole. The lookup of a cname rule's new target skips rewrite and acl. The class of version.bind is not rewritten. Upstreams receive only those options of the client's OPT record that a rule names. Answers that depend on an option that identifies the client are not cached. A ttl rule does not change the OPT record. The AD bit is cleared.",
		},
		{
			Name: "acl", Forms: []string{"acl [ZONE…]"}, parse: parseACL, repeats: true,
			Options:  []string{"allow|block|filter|drop [type TYPE…] [net NETWORK…]"},
			Summary:  "Allow or reject queries by client network and record type. The first policy that matches a query applies.",
			describe: func(b *Block) [][]string { return each(b.ACL...) },
			Differs:  "Types may be in upper or lower case.",
		},
		{
			Name: "normalize", Forms: []string{"normalize [SUFFIX…]"}, parse: parseNormalize, own: true,
			Options: []string{
				"mode off|observe|sibling", "signature bare|any", "sibling_timeout DURATION", "ttl DURATION",
				"except ZONE…", "repair on|off",
			},
			Summary:  "Answer NXDOMAIN where the upstream sends an empty answer for a name that does not exist.",
			describe: func(b *Block) [][]string { return each(b.Normalize) },
			Differs:  "CoreDNS does not have this directive.",
		},
		{
			Name: "search_cut", Forms: []string{"search_cut [off|ZONE…]"}, parse: parseSearchCut, own: true,
			Summary:  "Answer NXDOMAIN for all names below a name that the upstream has denied (RFC 8020). Without ZONE, this is for names in the cluster domain, and the default in the block that serves it.",
			describe: func(b *Block) [][]string { return each(b.SearchCut) },
			Differs:  "CoreDNS does not have this directive. See [cache.md](cache.md#search-paths).",
		},
		{
			Name: "cache", Forms: []string{"cache [TTL] [ZONE…]"}, parse: parseCache,
			Options: []string{
				"success CAPACITY [TTL [MINTTL]]", "denial CAPACITY [TTL [MINTTL]]",
				"prefetch AMOUNT [DURATION [PERCENTAGE%]]", "serve_stale [DURATION [immediate|verify]]",
				"servfail DURATION", "disable success|denial [ZONE…]", "keepttl",
			},
			Summary:  "Cache answers.",
			describe: func(b *Block) [][]string { return each(b.Cache) },
			Differs:  "All blocks share one memory budget. Equal queries that arrive while one is in flight are coalesced. Each RRset keeps its own TTL. A TTL of 0 is raised only if MINTTL is given; otherwise the answer is not cached. ANY answers, and a CNAME without its target, are not cached. A denial without SOA is cached for at most 5s. A failure is cached for 1s first, then twice as long each time, up to servfail. Without ZONE, the cache includes names that a rewrite has moved out of the block's zones.",
		},
	}
}

// answerDirectives answer queries. They are tried in this order until one answers.
func answerDirectives() []Directive {
	return []Directive{
		{
			Name: "template", Forms: []string{"template CLASS TYPE [ZONE…]"}, parse: parseTemplate, repeats: true,
			Options: []string{
				"match REGEXP…", "answer RECORD…", "authority RECORD…", "additional RECORD…", "rcode RCODE",
				"ederror CODE [TEXT]", "fallthrough [ZONE…]",
			},
			Summary:  "Answer with records that Go templates make from the question.",
			describe: func(b *Block) [][]string { return each(b.Templates...) },
			Differs:  "CLASS, TYPE and RCODE may be in upper or lower case. .Message is the query as sent to upstreams; .Meta is always empty. Answers with an ederror, or that use .Remote, are not cached. A CNAME is followed at most 8 times; these lookups skip rewrite and acl.",
		},
		{
			Name: "hosts", Forms: []string{"hosts [FILE [ZONE…]]"}, parse: parseHosts,
			Options:  []string{"ADDRESS NAME…", "ttl SECONDS", "no_reverse", "reload DURATION", "fallthrough [ZONE…]", "fallthrough_unsupported"},
			Summary:  "Answer A, AAAA and PTR from a hosts file, by default /etc/hosts, and from the entries in the braces.",
			describe: func(b *Block) [][]string { return each(b.Hosts) },
			Differs:  "A change of the file takes effect at once on file systems that report changes.",
		},
		{
			Name: "sample", Forms: []string{"sample"}, parse: parseSample, own: true,
			Summary:  "Answer from a built-in sample of a cluster zone, to try nodens out.",
			describe: func(b *Block) [][]string { return ifSet(b.Sample, "embedded zone") },
			Differs:  "CoreDNS does not have this directive.",
		},
		{
			Name: "loop", Forms: []string{"loop"}, parse: parseLoop,
			Summary:  "Detect a forwarding loop at start-up and whenever the upstreams change.",
			describe: func(b *Block) [][]string { return ifSet(b.Loop, "detection on") },
			Differs:  "A loop is logged and counted, and its queries get SERVFAIL. The process does not exit.",
		},
		{
			Name: "forward", Forms: []string{"forward FROM TO…"}, parse: parseForward, repeats: true,
			Options: []string{
				"except ZONE…", "force_tcp", "prefer_udp", "policy random|round_robin|sequential", "max_fails NUMBER",
				"expire DURATION", "health_check DURATION [no_rec] [domain NAME]", "max_concurrent NUMBER",
				"tls [CERT KEY] [CA]", "tls_servername NAME", "kubernetes_endpoints",
			},
			Summary:  "Forward queries to upstreams: addresses, tls://addresses, or the servers in a resolv.conf. With kubernetes_endpoints, the upstreams are the endpoints of the cluster DNS, and TO is used only while none is known.",
			describe: func(b *Block) [][]string { return each(b.Forwards...) },
			Differs:  "Changes of the resolv.conf take effect. Only the DO bit of the client's OPT record is forwarded. Queries use UDP first for all clients, as with prefer_udp, and TCP if a reply is truncated. Rcodes of the upstream other than NOERROR, NXDOMAIN and YXDOMAIN become SERVFAIL. Queries above max_concurrent get SERVFAIL. A health_check of 0s is an error. These options are errors: " + strings.Join(laterForwardOptions(), ", ") + ".",
		},
		{
			Name: "whoami", Forms: []string{"whoami"}, parse: parseWhoami, last: true,
			Summary:  "Answer every query with the client's address, port and protocol.",
			describe: func(b *Block) [][]string { return ifSet(b.Whoami, "on") },
			Differs:  "Answers are not cached, because each client gets its own.",
		},
	}
}
