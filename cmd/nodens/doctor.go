package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/daemon"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/netsetup"
)

// How doctor ends, besides well: with exit status 1 if it has found a fault or
// a warning, with 2 if it has found none but could not look at everything.
var (
	errFindings   = errors.New("doctor")
	errUnexamined = errors.New("doctor could not look at everything")
)

// doctorFlags are doctor's own, besides the daemon's.
type doctorFlags struct {
	*flags
	pods    []string
	json    bool
	large   string
	timeout time.Duration

	daemons bool // flags of the daemon were given
}

const doctorUsage = `usage: nodens doctor [-pod POD]... [-o text|json] [the daemon's flags]

Examines how queries reach nodens, from the node and from a pod. Without flags of
the daemon it takes those of the nodens that runs here, with the same files and
network: on the host, or in the same container.

  -pod POD       a process ID, the path of a network namespace, or the beginning
                 of a container's ID or a pod's UID; repeat it for several, none
                 for no pod (default: any one pod of the node)
  -o FORMAT      text or json (default text)
  -large NAME    a name with large TXT records, to see whether these get through
                 (default: the root's DNSKEY)
  -wait DURATION of one try; there are two (default 2s)

Exit status: 0 nothing wrong, notes at most; 1 a fault or a warning; 2 a wrong
command line, or nothing was found but not everything could be looked at.
`

// examine prints what doctor finds.
func examine(ctx context.Context, e env) error {
	f, err := readDoctorFlags(e)
	if err == nil && !f.daemons {
		f, err = f.adopt(&e, e.args[1:])
	}
	if err != nil {
		return helpIsNoError(err)
	}
	report := doctor.Examine(ctx, doctorConfig(f, e))
	if f.json {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.Write(e.stdout)
	}
	switch worst := report.Worst(); {
	case err != nil:
		return err
	case worst == doctor.Fault || worst == doctor.Warning:
		return fmt.Errorf("%w: %s", errFindings, report.Summary())
	case len(report.Unexamined) > 0:
		return errUnexamined
	}
	return nil
}

// readDoctorFlags parses doctor's command line: its own flags and the daemon's.
func readDoctorFlags(e env) (*doctorFlags, error) {
	d := &doctorFlags{flags: &flags{Options: defaults()}}
	fs := d.set()
	fs.SetOutput(e.stderr)
	fs.Usage = func() {}
	d.setOwn(fs)
	if err := checkRemoved(e.args[1:]); err != nil {
		fmt.Fprintln(e.stderr, err)
		return nil, errUsage
	}
	if err := fs.Parse(e.args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(e.stderr, doctorUsage)
			return nil, err
		}
		return nil, errUsage
	}
	if fs.NArg() > 0 || d.timeout <= 0 {
		fmt.Fprint(e.stderr, doctorUsage)
		return nil, errUsage
	}
	own := flag.NewFlagSet("", flag.ContinueOnError)
	new(doctorFlags).setOwn(own)
	podGiven := false
	fs.Visit(func(f *flag.Flag) {
		podGiven = podGiven || f.Name == "pod"
		d.daemons = d.daemons || own.Lookup(f.Name) == nil
	})
	if !podGiven {
		d.pods = []string{doctor.Auto}
	}
	return d, nil
}

// adopt returns doctor's flags together with those of the daemon that runs here. It
// makes e.getenv fall back to the daemon's environment.
func (d *doctorFlags) adopt(e *env, own []string) (*doctorFlags, error) {
	running, found, err := doctor.FindDaemon("/proc")
	if err != nil {
		return d, err
	}
	if !found {
		fmt.Fprintln(e.stderr, "no nodens runs with the same files and network; this is about one without flags")
		return d, nil
	}
	with := *e
	with.args = slices.Concat([]string{"doctor"}, running.Args, own)
	getenv := e.getenv
	e.getenv = func(name string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return running.Env[name]
	}
	return readDoctorFlags(with)
}

// setOwn declares the flags that the daemon has not.
func (d *doctorFlags) setOwn(fs *flag.FlagSet) {
	fs.Func("pod", "", func(s string) error {
		if s != "none" {
			d.pods = append(d.pods, s)
		}
		return nil
	})
	fs.StringVar(&d.large, "large", "", "")
	fs.DurationVar(&d.timeout, "wait", 2*time.Second, "")
	fs.Func("o", "", func(s string) error {
		d.json = s == "json"
		if s != "json" && s != "text" {
			return errors.New("want text or json")
		}
		return nil
	})
}

// doctorConfig is what the flags and the Corefile say.
func doctorConfig(f *doctorFlags, e env) doctor.Config {
	f.resolve()
	f.Getenv = e.getenv
	c := doctor.Config{
		Pods: f.pods, LargeName: f.large, Timeout: f.timeout,
		ClusterDomain: strings.ToLower(f.ClusterDomain) + ".", ResolvConf: daemon.HostResolvConf,
		Needs:   f.needs(),
		Holders: portHolders,
		Host:    func(ctx context.Context) (doctor.HostState, error) { return hostState(ctx, f.flags) },
	}
	for _, ip := range f.LocalIPs {
		c.Addresses = append(c.Addresses, netip.AddrPortFrom(ip, f.DNSPort))
	}
	if f.SetupMetrics != "" && !f.Sample && len(f.LocalIPs) > 0 {
		c.Ports = append(c.Ports, adminPort("-metrics-listen-address", f.SetupMetrics))
	}
	cfg, err := f.ReadCorefile(func(err error) { fmt.Fprintln(e.stderr, err) })
	if err != nil {
		c.ConfigError = err
		return c
	}
	for _, b := range cfg.Blocks {
		f.addBlock(&c, b)
	}
	f.addRedirect(&c, cfg)
	return c
}

// addBlock adds what one server block says.
func (f *doctorFlags) addBlock(c *doctor.Config, b *config.Block) {
	if b.Health != nil {
		c.Ports = append(c.Ports, adminPort("health", b.Health.Addr))
	}
	if b.Ready != nil {
		c.Ports = append(c.Ports, adminPort("ready", b.Ready.Addr))
	}
	if b.Prometheus != nil {
		c.Ports = append(c.Ports, adminPort("prometheus", b.Prometheus.Addr))
	}
	var zones []string
	for _, z := range b.Zones {
		zones = append(zones, z.Name)
		for _, s := range b.Bind {
			port := z.Port
			if port == 0 {
				port = f.DNSPort
			}
			ip, err := netip.ParseAddr(s)
			ap := netip.AddrPortFrom(ip, port)
			if len(f.LocalIPs) == 0 && err == nil && !ip.IsUnspecified() && !slices.Contains(c.Addresses, ap) {
				c.Addresses = append(c.Addresses, ap)
			}
		}
	}
	for _, fw := range b.Forwards {
		c.Forwards = append(c.Forwards, doctorForward(b, zones, fw))
	}
}

func doctorForward(b *config.Block, zones []string, fw *config.Forward) doctor.Forward {
	out := doctor.Forward{Where: fmt.Sprintf("%s:%d", b.File, fw.Line), Zones: zones, ForceTCP: fw.ForceTCP}
	if fw.From != "." {
		out.Zones = []string{fw.From}
	}
	for _, to := range fw.To {
		if to.ResolvConf != "" {
			out.Files = append(out.Files, to.ResolvConf)
		} else {
			out.To = append(out.To, doctor.Server{Addr: to.Addr, TLS: to.TLS})
		}
	}
	return out
}

// adminPort is a port of an HTTP endpoint, host:port.
func adminPort(name, addr string) doctor.Port {
	host, port := splitHostPort(addr)
	p := doctor.Port{Name: name, Port: port}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() {
		p.Addrs = []netip.Addr{ip}
	}
	return p
}

// Numbers of capabilities, include/uapi/linux/capability.h.
const (
	capNetBindService = 10
	capNetAdmin       = 12
	capSysAdmin       = 21
	capPerfmon        = 38
	capBPF            = 39
)

// needs lists the capabilities that the flags ask for.
func (f *flags) needs() []doctor.Need {
	var needs []doctor.Need
	if f.DNSPort < 1024 {
		needs = append(needs, doctor.Need{Name: "NET_BIND_SERVICE", Bit: capNetBindService, For: fmt.Sprintf("to listen on port %d", f.DNSPort)})
	}
	if len(f.HostConfig().Addrs) > 0 && (f.SetupInterface || f.SetupRules) {
		needs = append(needs, doctor.Need{Name: "NET_ADMIN", Bit: capNetAdmin, For: "to set up the local addresses and the netfilter rules"})
	}
	return needs
}

func portHolders(port uint16, addrs ...netip.Addr) ([]doctor.Holder, error) {
	found, err := netsetup.PortOwners("/proc", port, addrs...)
	if err != nil {
		return nil, err
	}
	out := make([]doctor.Holder, len(found))
	for i, h := range found {
		out[i] = doctor.Holder(h)
	}
	return out, nil
}

// hostState is the status command for doctor. What the flags leave to others is
// not judged.
func hostState(ctx context.Context, f *flags) (doctor.HostState, error) {
	var out doctor.HostState
	c := f.HostConfig()
	if len(c.Addrs) == 0 {
		return out, nil
	}
	h, err := netsetup.New(c)
	if err != nil {
		return out, err
	}
	defer h.Close()
	s, err := h.Status(ctx)
	if err != nil {
		return out, err
	}
	for _, a := range s.Addresses {
		switch {
		case a.Link == "":
			out.Missing = append(out.Missing, a.Address)
		case a.Problem != "" && f.SetupInterface:
			out.Problems = append(out.Problems, fmt.Sprintf("address %s: %s", a.Address, a.Problem))
		}
	}
	if s.Rules.Problem != "" && f.SetupRules && !f.Sample && len(out.Missing) < len(c.Addrs) {
		out.Problems = append(out.Problems, "netfilter rules: "+s.Rules.Problem)
	}
	hostFirewall(&out, s, f.SetupRules && !f.Sample)
	return out, nil
}

// hostFirewall adds what keeps the local IPs' traffic from its way: chains that
// nodens cannot open, and those that it was told not to.
func hostFirewall(out *doctor.HostState, s netsetup.Status, wanted bool) {
	for _, d := range s.Firewall.Drops {
		out.Drops = append(out.Drops, d.What+" "+d.Why)
	}
	switch {
	case !wanted:
		for _, c := range s.Firewall.Lacking {
			out.Drops = append(out.Drops, "chain "+c+" drops by default, and nodens was told to install no rules")
		}
	case s.Firewall.Problem != "" && len(out.Missing) < len(s.Addresses):
		out.Problems = append(out.Problems, "accept rules: "+s.Firewall.Problem)
	}
}

// splitHostPort is net.SplitHostPort for what has been checked already.
func splitHostPort(addr string) (host string, port uint16) {
	host, text, _ := net.SplitHostPort(addr)
	port, _ = parsePort(text)
	return host, port
}
