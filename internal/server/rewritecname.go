package server

import (
	"context"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// RewriteCNAME changes the target of a CNAME in the reply, and what follows it
// to what the new target has.
type RewriteCNAME struct {
	Match NameMatch // of the target
	To    string
}

// apply is for every question: which CNAMEs there are is not known before the
// reply is.
func (w RewriteCNAME) apply(r *rewriting) bool {
	r.cnames = append(r.cnames, w)
	return true
}

// retarget follows the rules for CNAMEs in m, the reply to q: the last first, as
// all that is done to replies. Where the new target is not to be had, m stays
// as it is.
func (s *Server) retarget(q *Query, rules []RewriteCNAME, m *dns.Msg) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	for _, w := range slices.Backward(rules) {
		for i, rr := range m.Answer {
			cname, ok := rr.(*dns.CNAME)
			if !ok || !w.Match.holds(strings.ToLower(cname.Target)) {
				continue
			}
			to := w.Match.replace(strings.ToLower(cname.Target), w.To)
			found := s.lookUp(ctx, q.exchange(), to, q.qtype)
			if found == nil {
				break
			}
			cname.Target, m.AuthenticatedData = to, false
			m.Truncated = found.Truncated
			m.Answer = append(m.Answer[:i+1:i+1], found.Answer...)
			break
		}
	}
}
