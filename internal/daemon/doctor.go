package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/fastpath"
	"github.com/nodens-dns/nodens/netsetup"
)

// doctorSetup derives doctor's configuration from the options.
type doctorSetup struct{ *Options }

// DoctorConfig returns doctor's configuration for a daemon with these options. It
// calls warn for each error that does not stop such a daemon.
func (o *Options) DoctorConfig(warn func(error)) doctor.Config {
	d := doctorSetup{o}
	c := doctor.Config{
		ClusterDomain: strings.ToLower(o.ClusterDomain) + ".", ResolvConf: o.Path(hostResolvConf),
		Needs: d.needs(), Holders: portHolders, Host: d.hostState,
	}
	c.WrongClusterIP = wrongClusterIP(o)
	for _, ip := range o.LocalIPs {
		c.Addresses = append(c.Addresses, netip.AddrPortFrom(ip, o.DNSPort))
	}
	if o.SetupMetrics != "" && !o.Sample && len(o.LocalIPs) > 0 {
		c.Ports = append(c.Ports, adminPort("-metrics-listen-address", o.SetupMetrics))
	}
	cfg, err := o.ReadCorefile(warn)
	if err != nil {
		c.ConfigError = err
		return c
	}
	for _, b := range cfg.Blocks {
		d.addBlock(&c, b)
	}
	d.addRedirect(&c, cfg)
	if plan := planFastpath(o, source{Config: cfg}); plan.Wanted() {
		c.KernelAnswers = func(ctx context.Context) map[int]string {
			lines, _ := fastpath.Status(plan, func() (fastpath.State, error) { return o.fastpathState(ctx, cfg) })
			return lines
		}
	}
	if addr := metricsAddr(cfg); addr != "" && slices.ContainsFunc(cfg.Blocks, (*config.Block).Cuts) {
		c.CutsOff = func(ctx context.Context) ([]string, error) { return cutsOff(ctx, addr) }
	}
	return c
}

// cutsOff returns the zones in which the daemon with metrics at addr has turned
// search_cut off.
func cutsOff(ctx context.Context, addr string) ([]string, error) {
	const name = "nodens_search_cut_off"
	found, err := scrape(ctx, addr, name)
	var zones []string
	for key, value := range found {
		if value == 1 {
			zones = append(zones, strings.TrimPrefix(key, name+" "))
		}
	}
	slices.Sort(zones)
	return zones, err
}

// addBlock adds the settings of one server block.
func (o doctorSetup) addBlock(c *doctor.Config, b *config.Block) {
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
			ip, err := netip.ParseAddr(s)
			ap := netip.AddrPortFrom(ip, o.portOf(z))
			if len(o.LocalIPs) == 0 && err == nil && !ip.IsUnspecified() && !slices.Contains(c.Addresses, ap) {
				c.Addresses = append(c.Addresses, ap)
			}
		}
	}
	for _, fw := range b.Forwards {
		c.Forwards = append(c.Forwards, o.forward(b, zones, fw))
	}
}

func (o doctorSetup) forward(b *config.Block, zones []string, fw *config.Forward) doctor.Forward {
	out := doctor.Forward{Where: fmt.Sprintf("%s:%d", b.File, fw.Line), Zones: zones, ForceTCP: fw.ForceTCP}
	if fw.From != "." {
		out.Zones = []string{fw.From}
	}
	for _, to := range fw.To {
		if to.ResolvConf != "" {
			out.Files = append(out.Files, o.Path(to.ResolvConf))
		} else {
			out.To = append(out.To, doctor.Server{Addr: to.Addr, TLS: to.TLS})
		}
	}
	return out
}

// Path returns where doctor finds a file of the daemon.
func (o *Options) Path(name string) string {
	if o.Files == "" {
		return name
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(o.Dir, name)
	}
	return filepath.Join(o.Files, name)
}

// adminPort returns the port of an HTTP endpoint at addr, which is host:port and was
// checked when it was parsed.
func adminPort(name, addr string) doctor.Port {
	host, text, _ := net.SplitHostPort(addr)
	port, _ := strconv.ParseUint(text, 10, 16)
	p := doctor.Port{Name: name, Port: uint16(port)}
	if ip, err := netip.ParseAddr(host); err == nil && !ip.IsUnspecified() {
		p.Addrs = []netip.Addr{ip}
	}
	return p
}

// needs lists the capabilities that the options need.
func (o doctorSetup) needs() []doctor.Need {
	var needs []doctor.Need
	if o.DNSPort < 1024 {
		needs = append(needs, doctor.Need{Name: "NET_BIND_SERVICE", Bit: unix.CAP_NET_BIND_SERVICE, For: fmt.Sprintf("to listen on port %d", o.DNSPort)})
	}
	if len(o.HostConfig().Addrs) > 0 && (o.SetupInterface || o.SetupRules) {
		needs = append(needs, doctor.Need{Name: "NET_ADMIN", Bit: unix.CAP_NET_ADMIN, For: "to set up the local addresses and the netfilter rules"})
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

// hostState returns the state of the host set-up. It ignores the parts that the
// options turn off.
func (o doctorSetup) hostState(ctx context.Context) (doctor.HostState, error) {
	var out doctor.HostState
	if len(o.HostConfig().Addrs) == 0 {
		return out, nil
	}
	s, err := o.hostStatus(ctx)
	if err != nil {
		return out, err
	}
	for _, a := range s.Addresses {
		switch {
		case a.Link == "":
			out.Missing = append(out.Missing, a.Address)
		case a.Problem != "" && o.SetupInterface:
			out.Problems = append(out.Problems, fmt.Sprintf("address %s: %s", a.Address, a.Problem))
		}
	}
	if s.Rules.Problem != "" && o.wantsRules() && len(out.Missing) < len(s.Addresses) {
		out.Problems = append(out.Problems, "netfilter rules: "+s.Rules.Problem)
	}
	addHostFirewall(&out, s, o.wantsRules())
	out.Filters = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Firewall.Chains, s.Firewall.Lacking))))
	return out, nil
}

// addHostFirewall adds the chains that drop traffic of the local addresses and that
// nodens cannot add accept rules to. If no rules are wanted, it also adds the chains
// without accept rules.
func addHostFirewall(out *doctor.HostState, s netsetup.Status, wanted bool) {
	for _, d := range s.Firewall.Drops {
		out.Drops = append(out.Drops, d.What+" "+d.Why)
	}
	switch {
	case !wanted:
		for _, c := range s.Firewall.Lacking {
			out.Drops = append(out.Drops, "chain "+c+" drops by default, and nodens does not install rules")
		}
	case s.Firewall.Problem != "" && len(out.Missing) < len(s.Addresses):
		out.Problems = append(out.Problems, "accept rules: "+s.Firewall.Problem)
	}
}
