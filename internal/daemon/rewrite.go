package daemon

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

func buildRewrite(rules []*config.Rewrite) *server.Rewrite {
	w := new(server.Rewrite)
	for _, r := range rules {
		w.Steps = append(w.Steps, server.RewriteStep{Rule: rewriteRule(r), Then: r.Continue})
	}
	return w
}

func rewriteRule(r *config.Rewrite) server.RewriteRule {
	switch {
	case r.Name != nil:
		return rewriteName(r.Name)
	case r.Type != nil:
		return server.RewriteType(*r.Type)
	case r.Class != nil:
		return server.RewriteClass(*r.Class)
	case r.CNAME != nil:
		return server.RewriteCNAME{Match: server.NameMatch(r.CNAME.Match), To: r.CNAME.To}
	case r.TTL != nil:
		return server.RewriteTTL{Match: server.NameMatch(r.TTL.Match), Min: r.TTL.Min, Max: r.TTL.Max}
	case r.Rcode != nil:
		return server.RewriteRcode{Match: server.NameMatch(r.Rcode.Match), From: r.Rcode.From, To: r.Rcode.To}
	}
	return rewriteEDNS0(r.EDNS0)
}

func rewriteName(n *config.RewriteName) server.RewriteName {
	w := server.RewriteName{Match: server.NameMatch(n.Match), To: n.To, Auto: n.Auto}
	for _, a := range n.Answers {
		w.Answers = append(w.Answers, server.RewriteAnswer(a))
	}
	return w
}

func rewriteEDNS0(e *config.RewriteEDNS0) server.RewriteEDNS0 {
	w := server.RewriteEDNS0{Action: e.Action, Code: e.Code, Data: e.Data, Variable: e.Variable}
	if e.Subnet {
		w.Subnet = &server.EDNS0Subnet{V4: e.V4, V6: e.V6}
	}
	return w
}

// buildTemplates also returns a key that is equal for equal templates.
func buildTemplates(b *config.Block) (t *server.Templates, key string, err error) {
	var list []server.TemplateConfig
	for _, t := range b.Templates {
		key += t.Key() + "\n"
		c := server.TemplateConfig{
			Zones: zonesOr(t.Zones, b), Class: t.Class, Type: t.Type, Patterns: t.Match, Rcode: t.Rcode,
			Answer: t.Answer, Authority: t.Authority, Additional: t.Additional, Fallthrough: t.Fallthrough,
		}
		if t.EDE != nil {
			c.EDE = &server.TemplateEDE{Code: t.EDE.Code, Text: t.EDE.Text}
		}
		list = append(list, c)
	}
	t, err = server.NewTemplates(list)
	return t, key, err
}
