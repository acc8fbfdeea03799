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

// examineSearch asks for a name that cannot exist under each search domain
// outside of the cluster, as stubs do first. Those in done are left out.
func (e *examination) examineSearch(ctx context.Context, from place, search, done []string) {
	if len(e.alive) == 0 {
		return
	}
	var work []func()
	for _, s := range search {
		suffix := dns.CanonicalName(s)
		if suffix == "." || dns.IsSubDomain(e.ClusterDomain, suffix) || slices.Contains(done, s) {
			continue
		}
		name := strings.ToLower(rand.Text()[:8]) + ".default.svc." + strings.TrimPrefix(e.ClusterDomain, ".") + suffix
		if _, ok := dns.IsDomainName(name); ok {
			work = append(work, func() { e.examineSuffix(ctx, from, suffix, name) })
		}
	}
	together(work...)
}

// examineSuffix asks the upstreams from the node, since they are the daemon's.
func (e *examination) examineSuffix(ctx context.Context, from place, suffix, name string) {
	for _, server := range e.alive {
		var a, aaaa outcome
		together(
			func() { a = e.ask(ctx, e.node, "udp", server, question(name, dns.TypeA)) },
			func() { aaaa = e.ask(ctx, e.node, "udp", server, question(name, dns.TypeAAAA)) },
		)
		said := fmt.Sprintf("%s answers %s for %s: A %s, AAAA %s", server, "a name that does not exist", "below "+suffix, said(a), said(aaaa))
		switch {
		case failed(a) || failed(aaaa):
			e.find(from.view, "search-failing", said)
		case hasData(a) || hasData(aaaa):
			e.fact(from.view, said)
		case empty(a) || empty(aaaa):
			s, cured := e.curedBy(ctx, name)
			if cured != "" {
				said += "; " + cured
			}
			e.findAs(from.view, "search-empty", s, said, "")
		}
	}
}

// curedBy asks nodens for the same name: NXDOMAIN for both types is the cure.
func (e *examination) curedBy(ctx context.Context, name string) (Severity, string) {
	addr, ok := e.nodens()
	if !ok {
		return "", ""
	}
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		o := e.ask(ctx, e.node, "udp", addr, question(name, qtype))
		if !o.answered() || o.reply.Rcode != dns.RcodeNameError {
			return "", "nodens passes that on"
		}
	}
	return Note, "nodens turns that into NXDOMAIN"
}

// nodens is an address at which nodens answers.
func (e *examination) nodens() (netip.AddrPort, bool) {
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

// failed tells that a stub would take it for no answer.
func failed(o outcome) bool {
	return !o.answered() || o.reply.Rcode != dns.RcodeSuccess && o.reply.Rcode != dns.RcodeNameError
}

// said is the reply in a word.
func said(o outcome) string {
	switch {
	case hasData(o):
		return "data"
	case empty(o):
		return "empty NOERROR"
	}
	return o.why()
}
