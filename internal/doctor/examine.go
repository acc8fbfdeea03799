package doctor

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Config specifies what to examine. Domain names are fully qualified.
type Config struct {
	Addresses []netip.AddrPort // the local IPs, to which pods send queries
	Ports     []Port           // other TCP ports that the daemon's configuration names
	Forwards  []Forward

	WrongClusterIP string // a local IP that should be the cluster IP of kube-dns; empty: none

	ConfigError   error  // why the Corefile is invalid; nil: it is valid
	ClusterDomain string // as "cluster.local."
	ResolvConf    string // of the node; empty: /etc/resolv.conf
	LargeName     string // a name with large TXT records; empty: the root's DNSKEY

	// Pods names pods by process ID, path of a network namespace, or the
	// beginning of a container's ID or a pod's UID. Auto is any one pod of
	// the node, preferably one with other nameservers than the node.
	Pods []string

	Needs    []Need
	Redirect Redirect

	Proc, Sys    string // mount points of proc and sysfs; empty: /proc and /sys
	CiliumSocket string // of the agent's API; empty: /var/run/cilium/cilium.sock

	// Timeout of each of two attempts. 0: 2 s.
	Timeout time.Duration

	// Host returns what is wrong with the host's links and rules. Nil: not
	// examined.
	Host func(ctx context.Context) (HostState, error)
	// CutsOff returns the zones in which the daemon has turned search_cut off. Nil:
	// not examined.
	CutsOff func(ctx context.Context) ([]string, error)
	// KernelAnswers says for each pod's interface, by index, whether the kernel answers
	// there, and why not. 0 stands for all interfaces. Nil: not wanted.
	KernelAnswers func(ctx context.Context) map[int]string
	// Holders returns the sockets on a port that are bound to one of addrs or
	// to the wildcard address. Nil: not examined.
	Holders func(port uint16, addrs ...netip.Addr) ([]Holder, error)
}

// Auto in Config.Pods makes doctor choose a pod.
const Auto = "auto"

// Port is a port that the daemon listens on besides DNS.
type Port struct {
	Name  string // the directive or flag
	Port  uint16
	Addrs []netip.Addr // empty: all
}

// Forward is one forward directive.
type Forward struct {
	Where    string   // FILE:LINE
	Zones    []string // of its server block
	To       []Server
	Files    []string // resolv.conf files with more servers
	ForceTCP bool
}

// Server is an upstream server.
type Server struct {
	Addr netip.AddrPort
	TLS  bool
}

// Need is a capability that the daemon needs.
type Need struct {
	Severity // if it is missing; empty: Fault

	Name string // such as NET_ADMIN
	Bit  uint   // its number
	For  string // follows "needed"
	Any  []uint // numbers of capabilities that replace it
}

// HostState is what netsetup finds.
type HostState struct {
	Missing  []netip.Addr // local IPs that no link has
	Problems []string     // other differences from the flags
	Drops    []string     // firewall chains of others that drop traffic of the local IPs
	Filters  []string     // chains at input and output that drop by default
}

// Holder is a socket on a port.
type Holder struct {
	Network string
	Local   netip.AddrPort
	PID     int // 0: not visible
	Comm    string
}

// Redirect describes socket redirection.
type Redirect struct {
	Mode   string // off, auto or on
	PinDir string // in a BPF file system
	Cgroup string // of the pods; empty: not found
	// State returns the state in the kernel. Nil: not examined.
	State func() (RedirectState, error)
}

// RedirectState is the state in the kernel.
type RedirectState struct {
	Attached     bool // all programs are attached
	Alive        bool // and send queries to the daemon
	HeartbeatAge time.Duration
	OptedOut     map[uint64]bool // cgroups, by their directories' inode numbers
	Own          uint64          // cgroup of the daemon, which is not redirected; 0: not below that of the pods
	Targets      map[netip.AddrPort]netip.AddrPort
}

// examination is one run of doctor. examineNode writes the fields from served on;
// afterwards they are read-only.
type examination struct {
	Config
	*notes
	client
	proc    procfs
	node    place
	served  map[netip.AddrPort]string // server that answers the node, by local IP; "": none
	alive   []netip.AddrPort          // upstreams of the root zone that answer
	conf    resolvConf                // of the node
	filters []string                  // HostState.Filters
	inForce RedirectState
	below   bool           // redirection applies to this process too
	exempt  bool           // this process is in the daemon's cgroup below that of the pods, as after kubectl exec
	kernel  map[int]string // of KernelAnswers
}

// Examine examines everything in cfg.
func Examine(ctx context.Context, cfg Config) *Report {
	cfg.setDefaults()
	e := &examination{
		Config: cfg, notes: &notes{views: append([]string{nodeView}, cfg.Pods...)},
		client: client{cfg.Timeout}, proc: procfs(cfg.Proc), node: place{view: nodeView}, served: make(map[netip.AddrPort]string),
	}
	if e.ConfigError != nil {
		e.find(nodeView, "config-invalid", e.ConfigError.Error())
	}
	if e.WrongClusterIP != "" {
		e.find(nodeView, "cluster-ip", e.WrongClusterIP)
	}
	e.examineNode(ctx)
	parallel(func() { e.examineSearch(ctx, nodeView, e.conf.search, nil) }, func() { e.examinePods(ctx) })
	return e.sorted()
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		to    *string
		value string
	}{{&c.Proc, "/proc"}, {&c.Sys, "/sys"}, {&c.CiliumSocket, "/var/run/cilium/cilium.sock"}, {&c.ResolvConf, "/etc/resolv.conf"}} {
		if *d.to == "" {
			*d.to = d.value
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
}

// own reports whether addr is one of the daemon's.
func (c *Config) own(addr netip.AddrPort) bool { return slices.Contains(c.Addresses, addr) }

// orAny returns addrs, or the local IPs and loopback if addrs is empty.
func (c *Config) orAny(addrs []netip.Addr) []netip.Addr {
	if len(addrs) > 0 {
		return addrs
	}
	addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for _, a := range c.Addresses {
		addrs = append(addrs, a.Addr())
	}
	return addrs
}

// examineNode examines the node. It must run before pods are examined.
func (e *examination) examineNode(ctx context.Context) {
	files := e.resolvConfs()
	before := e.proc.conntrackDrops()
	e.examineRedirect()
	parallel(
		func() { e.examineServing(ctx) },
		func() { e.examineUpstreams(ctx, files) },
	)
	e.examinePorts()
	e.examineCuts(ctx)
	e.examineKernelAnswers(ctx)
	e.examinePrivileges()
	e.examineConntrack(before)
}

// parallel runs fs concurrently and waits for all of them.
func parallel(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
	}
	wg.Wait()
}
