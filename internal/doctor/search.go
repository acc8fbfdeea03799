package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// searchExamination examines search domains.
type searchExamination struct {
	*examination
	view string // of the findings
}

// examineSearch queries a nonexistent name under each search domain outside the
// cluster, as stub resolvers do. It skips the domains in done. view is that of the
// findings.
func (e *examination) examineSearch(ctx context.Context, view string, search, done []string) {
	if len(e.alive) == 0 {
		return
	}
	s := searchExamination{e, view}
	var work []func()
	for _, domain := range search {
		suffix := dns.CanonicalName(domain)
		if suffix == "." || dns.IsSubDomain(e.ClusterDomain, suffix) || slices.Contains(done, domain) {
			continue
		}
		name := strings.ToLower(rand.Text()[:8]) + ".default.svc." + strings.TrimPrefix(e.ClusterDomain, ".") + suffix
		if _, ok := dns.IsDomainName(name); ok {
			work = append(work, func() { s.examine(ctx, suffix, name) })
		}
	}
	parallel(work...)
}

// examine queries from the node, as the daemon does.
func (e searchExamination) examine(ctx context.Context, suffix, name string) {
	for _, server := range e.alive {
		var a, aaaa outcome
		parallel(
			func() { a = e.query(ctx, e.node, "udp", server, question(name, dns.TypeA)) },
			func() { aaaa = e.query(ctx, e.node, "udp", server, question(name, dns.TypeAAAA)) },
		)
		what := fmt.Sprintf("%s answers a query for a nonexistent name below %s: A %s, AAAA %s", server, suffix, describe(a), describe(aaaa))
		switch {
		case failed(a) || failed(aaaa):
			e.find(e.view, "search-failing", what)
		case hasData(a) || hasData(aaaa):
			e.fact(e.view, what)
		case empty(a) || empty(aaaa):
			s, nodens := e.normalized(ctx, name)
			if nodens != "" {
				what += "; " + nodens
			}
			e.findAs(e.view, "search-empty", s, what, "")
		}
	}
}

// normalized queries nodens for the same name. If nodens answers NXDOMAIN for both
// types, the finding is only a Note.
func (e searchExamination) normalized(ctx context.Context, name string) (Severity, string) {
	addr, ok := e.nodens()
	if !ok {
		return "", ""
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		o := e.query(ctx, e.node, "udp", addr, question(name, qtype))
		if !o.answered() || o.reply.Rcode != dns.RcodeNameError {
			return "", "nodens passes that on"
		}
	}
	return Note, "nodens turns that into NXDOMAIN"
}

// nodens returns an address at which nodens answers.
func (e searchExamination) nodens() (netip.AddrPort, bool) {
	for _, a := range e.Addresses {
		if isNodens(e.served[a]) {
			return a, true
		}
	}
	return netip.AddrPort{}, false
}

func empty(o outcome) bool {
	return o.answered() && o.reply.Rcode == dns.RcodeSuccess && len(o.reply.Answer) == 0 && !o.reply.Truncated
}

func hasData(o outcome) bool { return o.answered() && len(o.reply.Answer) > 0 }

// failed reports whether a stub resolver treats the outcome as no answer.
func failed(o outcome) bool {
	return !o.answered() || o.reply.Rcode != dns.RcodeSuccess && o.reply.Rcode != dns.RcodeNameError
}

// describe returns the outcome in one or two words.
func describe(o outcome) string {
	switch {
	case hasData(o):
		return "data"
	case empty(o):
		return "empty NOERROR"
	}
	return o.why()
}
