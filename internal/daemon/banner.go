package daemon

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
)

// printBanner prints the addresses that we serve, and a query to try.
func (d *daemon) printBanner() error {
	var addrs []string
	for _, a := range d.server.Addrs() {
		addrs = append(addrs, a.String())
	}
	slices.Sort(addrs)
	try := exampleQuery(d.active.app.cfg.Config, d.opts, slices.DeleteFunc(d.server.Addrs(), d.redirect.Plan().IsTarget))
	if d.opts.LogJSON {
		record := slog.New(d.opts.LogHandler(d.opts.Stdout, nil))
		record.Info("serving", "version", d.opts.Version, "addresses", addrs, "try", try)
		return nil
	}
	_, err := fmt.Fprintf(d.opts.Stdout, "nodens %s listens on %s (udp, tcp); try: %s\n", d.opts.Version, strings.Join(addrs, ", "), try)
	return err
}

// exampleQuery is a dig command that nodens answers on one of addrs: for a name of
// the cluster if a block serves it, else for a name of the most general zone.
func exampleQuery(cfg *config.Config, o *Options, addrs []netip.AddrPort) string {
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	for _, a := range addrs {
		zones := zonesOn(cfg, o, a)
		if len(zones) == 0 {
			continue
		}
		return digCommand(reachable(a)) + " " + exampleName(zones, dns.Fqdn(o.ClusterDomain))
	}
	return "dig kubernetes.default.svc.cluster.local"
}

func digCommand(a netip.AddrPort) string {
	cmd := "dig @" + a.Addr().String()
	if a.Port() != 53 {
		cmd += fmt.Sprintf(" -p %d", a.Port())
	}
	return cmd
}

// zonesOn returns the zones with a source of answers that are served on addr.
func zonesOn(cfg *config.Config, o *Options, addr netip.AddrPort) []string {
	var zones []string
	for _, b := range cfg.Blocks {
		hosts, err := bindAddrs(b)
		if err != nil || !b.HasSource() || !slices.ContainsFunc(hosts, func(h netip.Addr) bool { return h == addr.Addr() || h.IsUnspecified() }) {
			continue
		}
		for _, z := range b.Zones {
			if o.portOf(z) == addr.Port() {
				zones = append(zones, z.Name)
			}
		}
	}
	return zones
}

// exampleName returns a name in one of zones. Reverse zones come last.
func exampleName(zones []string, cluster string) string {
	name := "kubernetes.default.svc." + cluster
	in := func(z string) bool { return z != "." && dns.IsSubDomain(z, name) }
	if slices.ContainsFunc(zones, in) {
		return strings.TrimSuffix(name, ".")
	}
	reverse := func(z string) int {
		if strings.HasSuffix(z, ".arpa.") {
			return 1
		}
		return 0
	}
	best := slices.MinFunc(zones, func(a, b string) int {
		return cmp.Or(reverse(a)-reverse(b), dns.CountLabel(a)-dns.CountLabel(b))
	})
	if best == "." {
		return "example.com"
	}
	return strings.TrimSuffix(best, ".")
}
