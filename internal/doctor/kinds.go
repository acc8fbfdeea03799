package doctor

// Kind holds what all findings of one ID have in common.
type Kind struct {
	ID       string
	Severity Severity // the default
	Why      string
	Do       string
}

func kindOf(id string) Kind {
	for _, k := range Kinds() {
		if k.ID == id {
			return k
		}
	}
	panic("doctor: unknown kind " + id) // ids are constants of this package
}

// Kinds returns all kinds of findings.
func Kinds() []Kind {
	var all []Kind
	for _, of := range [][]Kind{servingKinds(), hostKinds(), upstreamKinds(), podKinds()} {
		all = append(all, of...)
	}
	return all
}

func servingKinds() []Kind {
	return []Kind{
		{"config-invalid", Fault, "nodens does not start with this Corefile. A running nodens keeps using the last valid one.",
			"Correct the named line. nodens check validates the file without a restart."},
		{"cluster-ip", Warning, "Pods that query the cluster IP of kube-dns do not reach nodens by this address.",
			"Set -localip (config.dnsServer of the chart) to the cluster IP: kubectl -n kube-system get service kube-dns."},
		{"address-missing", Fault, "Pods send queries to this address, but no interface of the node has it.",
			"Check that nodens runs, and read its log. With -setupinterface=false, add the address yourself."},
		{"not-serving", Fault, "The node has the address, but no process listens there. Lookups that reach it fail.",
			"Start nodens, or read in its log why it does not listen."},
		{"port-held", Fault, "Another process has the port. nodens cannot open it, or shares it and loses some queries.",
			"Stop the other process, or move one of the two to another port (health, ready, prometheus in the Corefile, -metrics-listen-address)."},
		{"hung", Fault, "The process has the sockets open, so the kernel delivers queries to it, but it does not answer.",
			"Send it SIGQUIT: it prints its goroutines, exits and is started again. If it still does not answer, look for a firewall that drops packets on lo."},
		{"other-server", Fault, "Another server answers the pods instead of nodens.",
			"Find the process that has the address: an old node-cache, or a service proxy that translates the address."},
		{"tcp-lost", Fault, "Clients repeat a query over TCP when an answer is truncated. These lookups fail.",
			"Allow TCP port 53, and check nodens's limit on connections."},
		{"search-cut-off", Warning, "Every name of a search path goes to the upstream again, which is most of the load of a cluster's DNS.",
			"nodens's log names both names. Look for hosts, template, rewrite or fallthrough in the upstream's Corefile, correct it and reload nodens, or set search_cut off."},
		{"capability-missing", Fault, "nodens needs the capability for a feature that its configuration turns on.",
			"Add it to securityContext.capabilities.add of the container."},
		{"no-bpffs", Fault, "Socket redirection pins its programs in a BPF file system, so that they survive a restart.",
			"Mount /sys/fs/bpf from the host into the container. If the node has none, run mount -t bpf bpf /sys/fs/bpf there."},
		{"no-cgroup2", Fault, "Socket redirection attaches its programs to the pods' cgroup v2, and no cgroup v2 hierarchy is mounted.",
			"Mount /sys/fs/cgroup from the host into the container. On a node with only cgroup v1, pods must reach nodens by address."},
	}
}

func hostKinds() []Kind {
	return []Kind{
		{"host-drift", Warning, "The host's links or rules differ from what nodens's flags require.",
			"A running nodens repairs this. If the finding stays, read nodens's log and nodens status."},
		{"firewall-drops", Warning, "This chain drops DNS packets. Rules in other tables cannot change that, and nodens adds no rules to it.",
			"Accept the local addresses in this chain; see docs/host.md."},
		{"conntrack-full", Warning, "When the connection tracking table is full, the kernel drops new flows, including DNS from pods to CoreDNS.",
			"Raise net.netfilter.nf_conntrack_max, or find the source of the flows (conntrack -L)."},
		{"conntrack-drops", Warning, "Connection tracking drops packets at present, typically one of two queries (A and AAAA) sent at once from one socket.",
			"Let pods use nodens: its traffic is not tracked. Check its rules with nodens status."},
	}
}

func upstreamKinds() []Kind {
	return []Kind{
		{"upstream-silent", Warning, "A cache miss waits for this upstream, and fails if no other upstream answers.",
			"Query it from the node with dig. Check routes, firewalls, and the forward line."},
		{"fallback-silent", Fault, "This is the cluster's DNS. It resolves cache misses, and serves pods while nodens is down.",
			"Check the CoreDNS pods, the endpoints of their Service, and kube-proxy (or its replacement) on this node."},
		{"upstream-no-tcp", Warning, "nodens cannot fetch answers that do not fit into a UDP packet. With force_tcp, it cannot fetch any.",
			"Allow TCP port 53 from the node to this upstream."},
		{"upstream-refuses", Warning, "The upstream answers REFUSED, and nodens has to query the next upstream each time.",
			"Allow the node's address on this upstream, or remove it from the forward line."},
		{"forward-loop", Fault, "nodens forwards queries to itself. They loop until they time out.",
			"Name the real resolvers in the forward line, or in the file that it reads."},
		{"resolv-stub", Warning, "A loopback resolver works only in the host's network. CoreDNS pods with dnsPolicy Default get the same file, and query themselves.",
			"Start the kubelet with --resolv-conf=/run/systemd/resolve/resolv.conf, or another file with the real servers."},
		{"resolv-empty", Fault, "forward reads its upstreams from this file, and the file names none.",
			"Name servers in the file or in the forward line."},
		{"large-lost", Warning, "The network drops the fragments of answers above the MTU. nodens limits answers to 1232 bytes; queries with a larger limit time out.",
			"Allow fragments and ICMP \"fragmentation needed\", or limit answers to 1232 bytes (bufsize in CoreDNS)."},
		{"search-empty", Warning, "musl (Alpine) stops its search at an empty NOERROR, so cluster names do not resolve.",
			"Make the resolver answer NXDOMAIN, or use normalize for this suffix (by default it covers the node's search list). See docs/alpine.md."},
		{"search-failing", Warning, "Every lookup with this search domain waits for the failure. musl (Alpine) then gives up with EAI_AGAIN.",
			"Repair the resolver of this domain, or remove the domain from the node's search list."},
	}
}

func podKinds() []Kind {
	return []Kind{
		{"cni-swallows", Fault, "The pod's packets to the address never reach the host's network stack: the CNI's BPF program routes or drops them first.",
			"Turn on socket redirection (redirect), or have the CNI route such packets through the host's stack."},
		{"pod-lost", Fault, "The address answers the node but not the pod.",
			"Check the pod's network policies, the firewall on the node's input, and rp_filter."},
		{"pod-cut-off", Fault, "The pod reaches neither nodens nor the cluster's DNS, so nodens is not the cause.",
			"Check the pod's network: its link and routes, the CNI, and policies that deny egress."},
		{"pod-elsewhere", Warning, "The pod's lookups do not go through nodens.",
			"Set the kubelet's --cluster-dns to the address and restart the pod, or have nodens serve the kube-dns ClusterIP too (-localip)."},
		{"pod-loopback-resolver", Fault, "A loopback address is the pod's own, and no server answers there.",
			"Use dnsPolicy ClusterFirst for the pod, or start the kubelet with a --resolv-conf without loopback addresses."},
		{"pod-other-server", Fault, "The pod's packets to the address reach another server than the node's packets: they are translated, or routed off the node.",
			"Look for a service proxy rule for this address, and for another node or process that has it."},
		{"pod-tcp-lost", Fault, "Clients repeat a query over TCP when an answer is truncated. From this pod, these lookups fail.",
			"Allow TCP port 53 to the address in the pod's policies."},
		{"pod-fallback-silent", Warning, "While nodens is down, this pod has no DNS.",
			"Check the pod's policies and the service proxy on this node."},
		{"small-mtu", Warning, "An answer of 1232 bytes must be fragmented, and is lost if the network drops fragments.",
			"Raise the MTU to at least 1280, which IPv6 requires."},
		{"redirect-detached", Fault, "Pods that do not reach the address without redirection have no DNS.",
			"Read in nodens's log why it could not attach the programs. nodens status shows the state."},
		{"redirect-lost", Fault, "The pod's queries are redirected to nodens's listener on the node, but do not arrive.",
			"Allow the pod to reach the node on the listener's port; with Cilium policies: toEntities: [host]. See docs/cilium.md."},
		{"redirect-fallback", Warning, "The redirection programs treat nodens as dead, so the pod's queries go to the fallback, uncached.",
			"Check that nodens runs and answers (its log, /ready). It stops its heartbeat when its own test lookups fail, and withdraws when pods do not reach the target."},
	}
}
