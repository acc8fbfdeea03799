package config

import (
	"fmt"
	"strconv"

	"github.com/miekg/dns"
)

func (r *Rewrite) describe() []string {
	then := "stop"
	if r.Continue {
		then = "continue"
	}
	return []string{then, r.rule()}
}

func (r *Rewrite) rule() string {
	switch {
	case r.Name != nil:
		return r.Name.describe()
	case r.Type != nil:
		return "type " + dns.TypeToString[r.Type.From] + " to " + dns.TypeToString[r.Type.To]
	case r.Class != nil:
		return "class " + dns.ClassToString[r.Class.From] + " to " + dns.ClassToString[r.Class.To]
	case r.CNAME != nil:
		return "cname " + r.CNAME.Match.String() + " to " + word(r.CNAME.To)
	case r.TTL != nil:
		return fmt.Sprintf("ttl %s to %d-%d", r.TTL.Match, r.TTL.Min, r.TTL.Max)
	case r.Rcode != nil:
		return fmt.Sprintf("rcode %s %s to %s", r.Rcode.Match, dns.RcodeToString[r.Rcode.From], dns.RcodeToString[r.Rcode.To])
	}
	return r.EDNS0.describe()
}

// String returns m in the syntax of a rule.
func (m NameMatch) String() string {
	if m.Pattern != nil {
		return m.Kind + " " + strconv.Quote(m.Pattern.String())
	}
	return m.Kind + " " + word(m.Text)
}

func (w *RewriteName) describe() string {
	text := "name " + w.Match.String() + " to " + word(w.To)
	if w.Auto {
		text += ", answer auto"
	}
	for _, a := range w.Answers {
		kind := "name"
		if a.Value {
			kind = "value"
		}
		text += fmt.Sprintf(", answer %s %q to %s", kind, a.Pattern, word(a.To))
	}
	return text
}

func (w *RewriteEDNS0) describe() string {
	text := fmt.Sprintf("edns0 %s option %d", w.Action, w.Code)
	switch {
	case w.Variable != "":
		text += " {" + w.Variable + "}"
	case w.Subnet:
		text += fmt.Sprintf(" of /%d and /%d", w.V4, w.V6)
	case len(w.Data) > 0:
		text += fmt.Sprintf(" 0x%x", w.Data)
	}
	return text
}
