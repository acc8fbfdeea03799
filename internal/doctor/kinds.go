package doctor

// Kind is what all findings of one ID have in common.
type Kind struct {
	ID       string
	Severity Severity // the usual one
	Why      string
	Do       string
}

func kindOf(id string) Kind {
	for _, k := range Kinds() {
		if k.ID == id {
			return k
		}
	}
	panic("doctor: no kind " + id) // a name written in this package
}

// Kinds are all kinds of findings.
func Kinds() []Kind {
	var all []Kind
	for _, of := range [][]Kind{servingKinds(), hostKinds(), upstreamKinds(), podKinds()} {
		all = append(all, of...)
	}
	return all
}

func servingKinds() []Kind {
	return []Kind{
		{"config-invalid", Fault, "The daemon refuses to start with this Corefile; one that runs keeps the last good one.",
			"Correct the line that is named; nodens check prints the same without a restart."},
		{"address-missing", Fault, "Pods ask this address and nobody on the node owns it.",
			"See whether nodens runs and what its log says. With -setupinterface=false the address is yours to set up."},
		{"not-serving", Fault, "The address is on the node, but nothing listens there: every look-up of the pods times out.",
			"Start nodens, or look in its log for why it does not listen."},
		{"port-held", Fault, "Somebody else has the port, so nodens cannot have it, or shares it and loses some of its queries.",
			"End the other process, or move one of the two to another port (health, ready, prometheus in the Corefile, -metrics-listen-address)."},
		{"hung", Fault, "The process has the sockets, so the kernel keeps giving it queries that it does not answer.",
			"Take a goroutine dump with SIGQUIT, which also ends it, and let it be started again. A firewall that drops on lo looks the same."},
		{"other-server", Fault, "Pods get the answers of another server than the one you look at.",
			"Find out who owns the address: an old node-cache, or a service proxy that translates it."},
		{"tcp-lost", Fault, "Large answers come truncated and are asked for again over TCP; these look-ups fail.",
			"Let TCP port 53 through, and see nodens's limit of connections."},
		{"capability-missing", Fault, "Without the capability the daemon cannot do what its flags ask for.",
			"Add it to securityContext.capabilities.add of the container."},
		{"no-bpffs", Fault, "Socket redirection keeps its programs in a BPF file system, so that they outlive the process.",
			"Mount /sys/fs/bpf from the host into the container, or run mount -t bpf bpf /sys/fs/bpf on the node."},
		{"no-cgroup2", Fault, "Socket redirection attaches to the pods' cgroup in a cgroup v2 hierarchy, and none is mounted here.",
			"Mount /sys/fs/cgroup from the host into the container. A node with cgroup v1 alone has to be served by address."},
	}
}

func hostKinds() []Kind {
	return []Kind{
		{"host-drift", Warning, "The host is not as the daemon's flags want it.",
			"A running nodens repairs this by itself; if it stays, its log says why. nodens status shows all of it."},
		{"firewall-drops", Warning, "What this chain drops is dropped, whatever another table accepts, and nodens adds no rules of its own there.",
			"Let the local addresses pass in that chain; see docs/host.md."},
		{"conntrack-full", Warning, "Once the connection tracking table is full, the kernel drops new flows: DNS from pods to CoreDNS among them.",
			"Raise net.netfilter.nf_conntrack_max, or find who opens so many flows (conntrack -L)."},
		{"conntrack-drops", Warning, "Connection tracking drops packets right now: A and AAAA sent at once from one socket are the classic victims.",
			"Let pods use nodens, whose traffic is not tracked; see that its rules are in place with nodens status."},
	}
}

func upstreamKinds() []Kind {
	return []Kind{
		{"upstream-silent", Warning, "Every miss that goes there waits, and fails if no other upstream answers.",
			"Ask it from the node with dig; see routes and firewalls between, and the forward line that names it."},
		{"fallback-silent", Fault, "This is the cluster's DNS: who answers when nodens has no answer cached, and when nodens is not there.",
			"See the CoreDNS pods and the endpoints of their Service; on this node, kube-proxy or what stands in for it."},
		{"upstream-no-tcp", Warning, "Answers that do not fit into a datagram cannot be had, and with force_tcp nothing at all.",
			"Let TCP port 53 through to it."},
		{"upstream-refuses", Warning, "It answers, but not our questions: nodens asks the next upstream each time.",
			"Allow the node's address there, or take it out of the forward line."},
		{"forward-loop", Fault, "Queries that come back to where they came from go round until they time out.",
			"Name the real resolvers, in the forward line or in the file that it reads."},
		{"resolv-stub", Warning, "A loopback resolver works for who is in the host's network. CoreDNS pods with dnsPolicy Default are given the same file, and ask themselves.",
			"Start the kubelet with --resolv-conf=/run/systemd/resolve/resolv.conf (or what holds the real servers)."},
		{"resolv-empty", Fault, "forward reads its upstreams from this file and finds none.",
			"Name servers in it, or in the forward line."},
		{"large-lost", Warning, "Answers above the path's MTU come in fragments that somebody drops. nodens asks with a limit of 1232 octets; who asks with more stalls.",
			"Let fragments and ICMP \"fragmentation needed\" pass, or keep limits at 1232 (bufsize in CoreDNS)."},
		{"search-empty", Warning, "musl (Alpine) takes an empty NOERROR for the end of its search, and names of the cluster do not resolve.",
			"Use normalize for the suffix (on by default with the node's search list); better, have the resolver say NXDOMAIN. See docs/alpine.md."},
		{"search-failing", Warning, "Every look-up with this search domain waits for the failure; musl gives up with EAI_AGAIN.",
			"Repair the resolver of this domain, or take it out of the node's search list."},
	}
}

func podKinds() []Kind {
	return []Kind{
		{"cni-swallows", Fault, "The pod's packets to the address never reach the host's stack: the CNI's BPF program routes or drops them before.",
			"Turn on socket redirection (redirect), or have the CNI route such packets through the host."},
		{"pod-lost", Fault, "The node gets an answer from this address and the pod does not.",
			"Look for what is between: network policies of the pod, a firewall on the node's input, rp_filter."},
		{"pod-cut-off", Fault, "The pod reaches neither nodens nor the cluster's DNS, so this is not about nodens.",
			"See the pod's network: its link and routes, the CNI's state, policies that deny egress."},
		{"pod-elsewhere", Warning, "The pod's look-ups do not go through nodens.",
			"Set the kubelet's --cluster-dns to the address, or serve the kube-dns ClusterIP too (-localip); pods have it from their next start on."},
		{"pod-loopback-resolver", Fault, "Loopback is the pod's own, and nothing answers there.",
			"Give the pod dnsPolicy ClusterFirst, or the kubelet a --resolv-conf without loopback addresses."},
		{"pod-other-server", Fault, "The pod's packets to the address end elsewhere than the node's: translated, or routed off the node.",
			"Look for a service proxy's rule for this address, and for another node or process that owns it."},
		{"pod-tcp-lost", Fault, "Large answers come truncated and are asked for again over TCP; from this pod these look-ups fail.",
			"Let TCP port 53 to the address through the pod's policies."},
		{"pod-fallback-silent", Warning, "While nodens is away, this pod has nobody to ask.",
			"See the pod's policies and the service proxy on this node."},
		{"small-mtu", Warning, "An answer of 1232 octets does not fit into a packet here, and is lost where fragments are.",
			"Raise the MTU to 1280 at least, which IPv6 requires anyway."},
		{"redirect-detached", Fault, "Pods that do not reach the address by themselves have nobody to ask.",
			"See nodens's log for why the programs could not be attached; nodens status shows what is."},
		{"redirect-lost", Fault, "The pod's queries are sent to the daemon's redirect listener on the node, and do not arrive.",
			"Let the pod reach the node on the listener's port; with Cilium policies: toEntities: [host]. See docs/cilium.md."},
		{"redirect-fallback", Warning, "Redirection is in place and takes nodens for dead, so the pod's queries go to the fallback, uncached.",
			"See whether nodens runs and answers (its log, /ready); its heartbeat stops when its own look-ups do."},
	}
}
