package daemon

import (
	"os"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// buildActions makes the actions of a block on queries and replies; nil if there
// are none.
func buildActions(b *config.Block) (*server.Actions, error) {
	a := &server.Actions{NSID: nsid(b.NSID)}
	if b.BufSize != nil {
		a.MaxUDP = uint16(b.BufSize.Size)
	}
	if d := b.DNS64; d != nil {
		a.DNS64 = &server.DNS64{Prefix: d.Prefix, TranslateAll: d.TranslateAll, AllowIPv4: d.AllowIPv4}
	}
	if b.LoadBalance != nil {
		a.LoadBalance = &server.LoadBalance{Prefer: b.LoadBalance.Prefer}
	}
	if len(b.Rewrites) > 0 {
		a.Rewrite = buildRewrite(b.Rewrites)
	}
	var err error
	if a.ACL, err = buildACL(b); err != nil {
		return nil, err
	}
	if *a == (server.Actions{}) {
		return nil, nil
	}
	return a, nil
}

// nsid returns the text that the nsid directive sends to clients.
func nsid(n *config.NSID) string {
	if n == nil {
		return ""
	}
	if n.Text != "" {
		return n.Text
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "localhost"
}

func buildACL(b *config.Block) (*server.ACL, error) {
	if len(b.ACL) == 0 {
		return nil, nil
	}
	verdicts := map[config.ACLAction]server.ACLVerdict{
		config.ACLAllow: server.ACLAllow, config.ACLBlock: server.ACLBlock,
		config.ACLFilter: server.ACLFilter, config.ACLDrop: server.ACLDrop,
	}
	var rules []server.ACLRule
	for _, a := range b.ACL {
		r := server.ACLRule{Zones: zonesOr(a.Zones, b)}
		for _, p := range a.Policies {
			r.Policies = append(r.Policies, server.ACLPolicy{Verdict: verdicts[p.Action], Types: p.Types, Nets: p.Nets})
		}
		rules = append(rules, r)
	}
	return server.NewACL(rules)
}

// zonesOr returns the zones of a directive, or those of its block if it names none.
func zonesOr(zones []string, b *config.Block) []string {
	if len(zones) > 0 {
		return zones
	}
	names := make([]string, len(b.Zones))
	for i, z := range b.Zones {
		names[i] = z.Name
	}
	return names
}
