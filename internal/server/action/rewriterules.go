package action

import (
	"slices"

	"github.com/miekg/dns"
)

// RewriteType changes the type of the question.
type RewriteType struct{ From, To uint16 }

func (w RewriteType) apply(r *Rewriting) bool {
	if r.Type != w.From {
		return false
	}
	r.Type = w.To
	return true
}

// RewriteClass changes the class of the question.
type RewriteClass struct{ From, To uint16 }

func (w RewriteClass) apply(r *Rewriting) bool {
	if r.Class != w.From {
		return false
	}
	r.Class = w.To
	return true
}

// RewriteTTL bounds the TTLs of a reply, in seconds.
type RewriteTTL struct {
	Match    NameMatch
	Min, Max uint32
}

func (w RewriteTTL) apply(r *Rewriting) bool {
	if !w.Match.holds(r.Name) {
		return false
	}
	r.undo = append(r.undo, w)
	return true
}

func (w RewriteTTL) record(rr dns.RR) {
	if h := rr.Header(); h.Rrtype != dns.TypeOPT { // OPT has no TTL
		h.Ttl = max(w.Min, min(w.Max, h.Ttl))
	}
}

func (RewriteTTL) message(*dns.Msg) {}

// RewriteRcode changes the rcode of a reply.
type RewriteRcode struct {
	Match    NameMatch
	From, To int
}

func (w RewriteRcode) apply(r *Rewriting) bool {
	if !w.Match.holds(r.Name) {
		return false
	}
	r.undo = append(r.undo, w)
	return true
}

func (RewriteRcode) record(dns.RR) {}

func (w RewriteRcode) message(m *dns.Msg) {
	if m.Rcode == w.From {
		m.Rcode, m.Authoritative = w.To, false
	}
}

// RewritesClass reports whether some step is for questions of that class. A nil
// Rewrite has no steps.
func (w *Rewrite) RewritesClass(class uint16) bool {
	return w != nil && slices.ContainsFunc(w.Steps, func(s RewriteStep) bool {
		c, ok := s.Rule.(RewriteClass)
		return ok && c.From == class
	})
}
