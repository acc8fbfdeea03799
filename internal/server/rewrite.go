package server

import (
	"errors"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// Rewrite changes questions before they are looked up, and replies so that they
// fit what the client asked.
type Rewrite struct {
	Steps []RewriteStep
}

// RewriteStep is one rule. The steps are tried in order until one that applies
// does not go on.
type RewriteStep struct {
	Rule RewriteRule
	Then bool // go on with the next step
}

// RewriteRule changes a question, or notes what to do with the reply, and
// reports whether it applies.
type RewriteRule interface {
	apply(r *rewriting) bool
}

// rewriting is one question on its way through the steps.
type rewriting struct {
	q       *Query // the client's
	name    string // presentation form, lower case
	qtype   uint16
	qclass  uint16
	options []dns.EDNS0 // for upstream
	private bool        // the options tell who asks
	undo    []undo      // to be done in reverse
	cnames  []RewriteCNAME
	applied bool // some step
}

// undo is what to do with a reply, after the lookup.
type undo interface {
	record(rr dns.RR)
	message(m *dns.Msg)
}

var errRewritten = errors.New("rewrite makes no domain name of it")

// run takes q through the steps. A nil Rewrite has none.
func (w *Rewrite) run(q *Query) *rewriting {
	r := &rewriting{q: q}
	if w == nil {
		return r
	}
	r.name, r.qtype, r.qclass = strings.ToLower(q.presentation()), q.qtype, q.qclass
	for _, s := range w.Steps {
		if !s.Rule.apply(r) {
			continue
		}
		r.applied = true
		if !s.Then {
			break
		}
	}
	return r
}

// rewrite looks up what the zone's rules have made of r's question, and makes
// the reply fit that question again.
func (s *Server) rewrite(j *job, r *rewriting) (message, outcome) {
	if !r.applied {
		return s.consult(j, r.q)
	}
	var asked Query
	if err := r.question(&asked); err != nil {
		return failed(err), outcome{rcode: dns.RcodeServerFailure}
	}
	m, o := s.consult(j, &asked)
	if !o.dropped {
		s.retarget(&asked, r.cnames, m.Msg)
		r.restore(m.Msg)
	}
	return m, o
}

// question makes the question that the steps have led to.
func (r *rewriting) question(into *Query) error {
	r.q.copyTo(into)
	var buf [maxNameLen + 1]byte
	n, err := dns.PackDomainName(r.name, buf[:], 0, nil, false)
	if err != nil || n > maxNameLen {
		return errRewritten
	}
	into.name = append(into.nameBuf[:0], buf[:n]...)
	into.lower = appendLower(into.lowerBuf[:0], into.name)
	into.qtype, into.qclass = r.qtype, r.qclass
	into.extra, into.private = r.options, r.private
	into.key = cache.AppendKey(into.keyBuf[:0], into.lower, into.qtype, into.qclass, into.do, into.cd(), into.ad)
	return nil
}

// restore takes the reply back through what the steps have noted. Records that
// were changed are not what anybody has signed.
func (r *rewriting) restore(m *dns.Msg) {
	if len(r.undo) == 0 && r.qtype == r.q.qtype && strings.EqualFold(r.name, r.q.presentation()) {
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
