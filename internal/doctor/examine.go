package doctor

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// Config says what to examine. Names are fully qualified.
type Config struct {
	Addresses []netip.AddrPort // where pods ask the daemon: the local IPs
	Ports     []Port           // other TCP ports that the daemon's configuration names
	Forwards  []Forward

	ConfigError   error  // why the Corefile cannot be used; nil: it can
	ClusterDomain string // as "cluster.local."
	ResolvConf    string // the node's; empty: /etc/resolv.conf
	LargeName     string // one more name whose TXT records are large; may be empty

	// Pods are named by process ID, by the path of a network namespace, or by
	// the beginning of a container's ID or of a pod's UID. Auto stands for any
	// one pod of the node.
	Pods []string

	Needs    []Need
	Redirect Redirect

	Proc, Sys    string // where proc and sysfs are; empty: /proc and /sys
	CiliumSocket string // of the agent's API; empty: /var/run/cilium/cilium.sock

	// Timeout of one try of two. 0: 2 s.
	Timeout time.Duration

	// Host tells what is not as wanted on the host. Nil: not asked.
	Host func(ctx context.Context) (HostState, error)
	// Holders tells who has sockets on a port, of any of the addresses or the
	// wildcard. Nil: not asked.
	Holders func(port uint16, addrs ...netip.Addr) ([]Holder, error)
}

// Auto in Config.Pods stands for a pod of doctor's choice.
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
	Zones    []string // of its block
	To       []Server
	Files    []string // resolv.conf files that it reads more servers from
	ForceTCP bool
}

// Server is an upstream server.
type Server struct {
	Addr netip.AddrPort
	TLS  bool
}

// Need is a capability and what it is needed for.
type Need struct {
	Severity // of its lack; empty: Fault

	Name string // as NET_ADMIN
	Bit  uint   // its number
	For  string
	Any  []uint // numbers of capabilities that stand in for it
}

// HostState is what netsetup sees.
type HostState struct {
	Missing  []netip.Addr // local IPs that are on no link
	Problems []string     // what else is not as wanted
	Drops    []string     // what of others drops their traffic, and why
}

// Holder is a socket on a port.
type Holder struct {
	Network string
	Local   netip.AddrPort
	PID     int // 0: not visible
	Comm    string
}

// Redirect is what is known of socket redirection.
type Redirect struct {
	Mode   string // off, auto or on
	PinDir string // in a BPF file system
	Cgroup string // of the pods; empty: not found
	// State tells what is in force.
	State func() (RedirectState, error)
}

// RedirectState is what the kernel has of it.
type RedirectState struct {
	Attached     bool // all programs run
	Alive        bool // and send look-ups to the daemon
	HeartbeatAge time.Duration
	OptedOut     map[uint64]bool // cgroups, by their directories' inode numbers
	Targets      map[netip.AddrPort]netip.AddrPort
}

// examination is one run.
type examination struct {
	Config
	*notes
	node    place
	served  map[netip.AddrPort]string // who answers the node, by address; written before pods are examined
	alive   []netip.AddrPort          // upstreams of the root zone that answer; likewise
	search  []string                  // the node's search list; likewise
	inForce RedirectState             // likewise
	below   bool                      // redirection is in force for this process, too; likewise
}

// Examine looks at everything in cfg. Nothing that is found is an error.
func Examine(ctx context.Context, cfg Config) *Report {
	cfg.setDefaults()
	e := &examination{
		Config: cfg, notes: &notes{views: append([]string{nodeView}, cfg.Pods...)},
		node: place{view: nodeView}, served: make(map[netip.AddrPort]string),
	}
	if e.ConfigError != nil {
		e.find(nodeView, "config-invalid", e.ConfigError.Error())
	}
	e.examineNode(ctx)
	together(func() { e.examineSearch(ctx, e.node, e.search, nil) }, func() { e.examinePods(ctx) })
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

// examineNode fills in what the pods' examinations need.
func (e *examination) examineNode(ctx context.Context) {
	files := e.resolvConfs()
	before := e.conntrackDrops()
	together(
		func() { e.examineServing(ctx) },
		func() { e.examineUpstreams(ctx, files) },
	)
	e.examinePorts()
	e.examinePrivileges()
	e.examineRedirect()
	e.examineConntrack(before)
}

// together runs fs at once and waits for all of them.
func together(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
	}
	wg.Wait()
}
