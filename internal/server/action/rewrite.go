package action

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Rewrite changes questions before they are looked up. It changes the replies
// so that they match the client's question again.
type Rewrite struct {
	Steps []RewriteStep
}

// RewriteStep is one rule. The steps are tried in order. The first that applies
// is the last, unless it continues.
type RewriteStep struct {
	Rule     RewriteRule
	Continue bool // try the next step even if this one applies
}

// RewriteRule changes a question, or records a change to the reply. It reports
// whether it applies.
type RewriteRule interface {
	apply(r *Rewriting) bool
}

// Question is a client's question as rules see it.
type Question struct {
	Name        string // presentation form, lower case
	Type, Class uint16
	Client      netip.AddrPort
	Server      netip.AddrPort // the address of the listener
	TCP         bool
	Options     []byte // of the client's OPT record, in wire format
}

// Rewriting is one question on its way through the steps.
type Rewriting struct {
	Name        string // the name to look up, presentation form, lower case
	Type, Class uint16
	Options     []dns.EDNS0 // for upstream
	Private     bool        // the options depend on the client
	Applied     bool        // some step applies

	client Question
	undo   []undo // to be done in reverse order
	cnames []RewriteCNAME
}

// undo is a change to a reply.
type undo interface {
	record(rr dns.RR)
	message(m *dns.Msg)
}

// Run takes q through the steps.
func (w *Rewrite) Run(q Question) *Rewriting {
	r := &Rewriting{Name: q.Name, Type: q.Type, Class: q.Class, client: q}
	for _, s := range w.Steps {
		if !s.Rule.apply(r) {
			continue
		}
		r.Applied = true
		if !s.Continue {
			break
		}
	}
	return r
}

// Restore changes the reply so that it matches the client's question. It clears AD,
// because changed records have no valid signature.
func (r *Rewriting) Restore(m *dns.Msg) {
	if len(r.undo) == 0 && r.Type == r.client.Type && strings.EqualFold(r.Name, r.client.Name) {
		return
	}
	m.AuthenticatedData = false
	for _, u := range slices.Backward(r.undo) {
		for _, section := range [][]dns.RR{m.Ns, m.Answer, m.Extra} {
			for _, rr := range section {
				u.record(rr)
			}
		}
		u.message(m)
	}
}
