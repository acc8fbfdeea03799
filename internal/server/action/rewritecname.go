package action

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// RewriteCNAME changes the target of a CNAME in the reply, and replaces the
// records behind it with those of the new target.
type RewriteCNAME struct {
	Match NameMatch // of the target
	To    string
}

// apply applies to every question: the CNAMEs are known only with the reply.
func (w RewriteCNAME) apply(r *Rewriting) bool {
	r.cnames = append(r.cnames, w)
	return true
}

// Retargets reports whether Retarget would look a name up for m.
func (r *Rewriting) Retargets(m *dns.Msg) bool {
	for _, w := range r.cnames {
		for _, rr := range m.Answer {
			if cname, ok := rr.(*dns.CNAME); ok && w.Match.holds(strings.ToLower(cname.Target)) {
				return true
			}
		}
	}
	return false
}

// Retarget applies the rules for CNAMEs to m, the last rule first, as with all
// changes to replies. lookup returns nil if a name has no answer; then that
// CNAME stays as it is.
func (r *Rewriting) Retarget(m *dns.Msg, lookup func(name string) *dns.Msg) {
	for _, w := range slices.Backward(r.cnames) {
		for i, rr := range m.Answer {
			cname, ok := rr.(*dns.CNAME)
			if !ok || !w.Match.holds(strings.ToLower(cname.Target)) {
				continue
			}
			to := w.Match.replace(strings.ToLower(cname.Target), w.To)
			found := lookup(to)
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
