package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/upstream"
)

// HostResolvConf is the file that names the host's upstreams and search list.
const HostResolvConf = "/etc/resolv.conf"

// searchList is the search list that normalize takes its suffixes from.
type searchList struct {
	path    string
	content content // from before it was read
	domains []string
}

// readSearch reads the host's search list. A file without a nameserver may
// still have one; a missing file has none.
func readSearch(path string) (searchList, error) {
	s := searchList{path: path, content: contentOf([]string{path})}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	_, s.domains, err = upstream.ParseResolvConf(bytes.NewReader(text))
	if errors.Is(err, upstream.ErrNoNameserver) {
		err = nil
	}
	return s, err
}

// normalise makes what the block's normalize directive asks for. In node-local
// mode it is on for the root zone without being written.
func (d *daemon) normalise(a *app, b *config.Block) (*server.Normalise, error) {
	n := b.Normalize
	if n == nil && d.normalisesByDefault(b) {
		n = config.DefaultNormalize()
	}
	if n == nil || n.Mode == config.NormalizeOff {
		return nil, nil
	}
	suffixes := n.Suffixes
	if len(suffixes) == 0 {
		s, err := readSearch(d.resolvConf)
		if err != nil {
			// Nobody asked for it at this place: DNS goes on without.
			d.log.Warn("normalize has no search list", "error", err)
		}
		a.search, suffixes = &s, d.usable(s)
	}
	return server.NewNormalise(server.NormaliseConfig{
		Suffixes: suffixes, Except: append(slices.Clone(n.Except), d.otherZones(a.cfg, b)...),
		Observe: n.Mode == config.NormalizeObserve, Bare: n.Bare, Repair: n.Repair,
		Timeout: n.Timeout, TTL: n.TTL,
	})
}

func (d *daemon) normalisesByDefault(b *config.Block) bool {
	isRoot := func(z config.Zone) bool { return z.Name == "." }
	return len(d.opts.LocalIPs) > 0 && len(b.Forwards) > 0 && slices.ContainsFunc(b.Zones, isRoot)
}

// otherZones are the cluster domain and the zones that other blocks serve: the
// stub domains among them. Names in these are never touched.
func (d *daemon) otherZones(cfg source, b *config.Block) []string {
	zones := []string{dns.Fqdn(d.opts.ClusterDomain)}
	for _, other := range cfg.Blocks {
		if other == b {
			continue
		}
		for _, z := range other.Zones {
			zones = append(zones, z.Name)
		}
	}
	return withoutRoot(zones)
}

// usable are the search domains that are domain names, without the root.
func (d *daemon) usable(s searchList) []string {
	var domains []string
	for _, domain := range withoutRoot(s.domains) {
		if _, ok := dns.IsDomainName(domain); !ok {
			d.log.Warn("search domain left out of normalize: it is no domain name", "file", s.path, "domain", domain)
			continue
		}
		domains = append(domains, domain)
	}
	return domains
}

func withoutRoot(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == "." })
}

// followSearch asks for a reload when the host's search list may have changed.
func (d *daemon) followSearch(ctx context.Context, s *searchList) {
	const look = time.Minute // for file systems that do not notify
	err := watchFiles(ctx, []string{s.path}, s.content, look, func() { d.askReload(s.path + " changed") })
	if err != nil && ctx.Err() == nil {
		d.log.Error("the search list is no longer followed", "file", s.path, "error", err)
	}
}
