package daemon

import (
	"os"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
	"github.com/nodens-dns/nodens/internal/server/action"
)

// buildActions makes the actions of a block on queries and replies; nil if there
// are none.
func buildActions(b *config.Block) (*server.Actions, error) {
	a := &server.Actions{NSID: nsid(b.NSID)}
	if b.BufSize != nil {
		a.MaxUDP = uint16(b.BufSize.Size)
	}
	if d := b.DNS64; d != nil {
		a.DNS64 = &action.DNS64{Prefix: d.Prefix, TranslateAll: d.TranslateAll, AllowIPv4: d.AllowIPv4}
	}
	if b.LoadBalance != nil {
		a.LoadBalance = &action.LoadBalance{Prefer: b.LoadBalance.Prefer}
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

func buildACL(b *config.Block) (*action.ACL, error) {
	if len(b.ACL) == 0 {
		return nil, nil
	}
	verdicts := map[config.ACLAction]action.ACLVerdict{
		config.ACLAllow: action.ACLAllow, config.ACLBlock: action.ACLBlock,
		config.ACLFilter: action.ACLFilter, config.ACLDrop: action.ACLDrop,
	}
	var rules []action.ACLRule
	for _, a := range b.ACL {
		r := action.ACLRule{Zones: zonesOr(a.Zones, b)}
		for _, p := range a.Policies {
			r.Policies = append(r.Policies, action.ACLPolicy{Verdict: verdicts[p.Action], Types: p.Types, Nets: p.Nets})
		}
		rules = append(rules, r)
	}
	return action.NewACL(rules)
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
