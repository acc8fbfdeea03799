package daemon

import (
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server/action"
)

func buildRewrite(rules []*config.Rewrite) *action.Rewrite {
	w := new(action.Rewrite)
	for _, r := range rules {
		w.Steps = append(w.Steps, action.RewriteStep{Rule: rewriteRule(r), Continue: r.Continue})
	}
	return w
}

func rewriteRule(r *config.Rewrite) action.RewriteRule {
	switch {
	case r.Name != nil:
		return rewriteName(r.Name)
	case r.Type != nil:
		return action.RewriteType(*r.Type)
	case r.Class != nil:
		return action.RewriteClass(*r.Class)
	case r.CNAME != nil:
		return action.RewriteCNAME{Match: action.NameMatch(r.CNAME.Match), To: r.CNAME.To}
	case r.TTL != nil:
		return action.RewriteTTL{Match: action.NameMatch(r.TTL.Match), Min: r.TTL.Min, Max: r.TTL.Max}
	case r.Rcode != nil:
		return action.RewriteRcode{Match: action.NameMatch(r.Rcode.Match), From: r.Rcode.From, To: r.Rcode.To}
	}
	return rewriteEDNS0(r.EDNS0)
}

func rewriteName(n *config.RewriteName) action.RewriteName {
	w := action.RewriteName{Match: action.NameMatch(n.Match), To: n.To, Auto: n.Auto}
	for _, a := range n.Answers {
		w.Answers = append(w.Answers, action.RewriteAnswer(a))
	}
	return w
}

func rewriteEDNS0(e *config.RewriteEDNS0) action.RewriteEDNS0 {
	w := action.RewriteEDNS0{Action: e.Action, Code: e.Code, Data: e.Data, Variable: e.Variable}
	if e.Subnet {
		w.Subnet = &action.EDNS0Subnet{V4: e.V4, V6: e.V6}
	}
	return w
}

// buildTemplates also returns a key that is equal for equal templates.
func buildTemplates(b *config.Block) (t *action.Templates, key string, err error) {
	var list []action.TemplateConfig
	for _, t := range b.Templates {
		key += t.Key() + "\n"
		c := action.TemplateConfig{
			Zones: zonesOr(t.Zones, b), Class: t.Class, Type: t.Type, Patterns: t.Match, Rcode: t.Rcode,
			Answer: t.Answer, Authority: t.Authority, Additional: t.Additional, Fallthrough: t.Fallthrough,
		}
		if t.EDE != nil {
			c.EDE = &action.ReplyEDE{Code: t.EDE.Code, Text: t.EDE.Text}
		}
		list = append(list, c)
	}
	t, err = action.NewTemplates(list)
	return t, key, err
}
