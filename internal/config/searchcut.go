package config

import (
	"errors"
	"slices"

	"github.com/miekg/dns"
)

// SearchCut is the search_cut directive. It answers names below one that the upstream
// has denied.
type SearchCut struct {
	File  string
	Line  int // 0: the default
	Off   bool
	Zones []string // fully qualified; empty: the cluster domain, see SetClusterDomain
}

// parseSearchCut reads search_cut [off|ZONE…].
func parseSearchCut(b *Block, s statement) error {
	c := &SearchCut{File: s.file, Line: s.line}
	b.SearchCut = c
	if err := s.noBlock(); err != nil {
		return err
	}
	if len(s.args) > 0 && s.args[0].text == "off" {
		c.Off = true
		return s.arity(1, 1, "off")
	}
	var err error
	c.Zones, err = parseZoneList(s, 0)
	return err
}

// Cuts reports whether search_cut is on in b.
func (b *Block) Cuts() bool { return b.SearchCut != nil && !b.SearchCut.Off }

// checkSearchCuts refuses zones that cannot have cuts.
func checkSearchCuts(blocks []*Block) error {
	var errs []error
	for _, b := range blocks {
		if b.SearchCut != nil {
			for _, z := range b.SearchCut.Zones {
				errs = append(errs, b.SearchCut.fail(b.cutProblem(z)))
			}
		}
	}
	return errors.Join(errs...)
}

func (c *SearchCut) fail(err error) error {
	if err == nil {
		return nil
	}
	return &Error{File: c.File, Line: c.Line, Directive: "search_cut", Err: err}
}

// SetClusterDomain completes the search_cut directives without zones and adds one to
// the block that has the cluster domain, if it can have cuts.
func (c *Config) SetClusterDomain(domain string) error {
	domain = dns.CanonicalName(domain)
	var errs []error
	for _, b := range c.Blocks {
		switch cut := b.SearchCut; {
		case cut == nil && c.servesLongest(b, domain) && b.cutProblem(domain) == nil:
			b.SearchCut = &SearchCut{Zones: []string{domain}}
		case cut != nil && !cut.Off && len(cut.Zones) == 0:
			cut.Zones = []string{domain}
			errs = append(errs, cut.fail(b.cutProblem(domain)))
		}
	}
	return errors.Join(errs...)
}

// servesLongest reports whether b has the longest zone that domain is in, among the
// blocks on the same addresses.
func (c *Config) servesLongest(b *Block, domain string) bool {
	longest := func(b *Block) (n int) {
		for _, z := range b.Zones {
			if dns.IsSubDomain(z.Name, domain) {
				n = max(n, dns.CountLabel(z.Name)+1)
			}
		}
		return n
	}
	return longest(b) > 0 && !slices.ContainsFunc(c.Blocks, func(other *Block) bool {
		return other != b && shareAddress(other.Bind, b.Bind) && longest(other) > longest(b)
	})
}

// cutProblem returns why names below domain cannot be answered from cuts.
func (b *Block) cutProblem(domain string) error {
	above := func(zone string) bool { return dns.IsSubDomain(zone, domain) }
	below := func(zone string) bool { return zone != domain && dns.IsSubDomain(domain, zone) }
	for _, never := range []string{"arpa.", "clusterset.local."} {
		if dns.IsSubDomain(never, domain) {
			return reason("zone %s: an upstream may deny a name in %s and have names below it; remove the zone", domain, never)
		}
	}
	switch {
	case domain == ".":
		return reason("the root zone cannot have cuts; name the zones of your search lists")
	case !slices.ContainsFunc(b.Zones, func(z Zone) bool { return above(z.Name) }):
		return reason("zone %s is not in this server block; write the directive into the block that serves it", domain)
	case b.Cache == nil:
		return reason("the block has no cache directive, and cuts are cached denials; add cache")
	case b.Cache.Denial.Disabled && (len(b.Cache.Denial.DisabledOnly) == 0 || slices.ContainsFunc(b.Cache.Denial.DisabledOnly, func(z string) bool { return above(z) || below(z) })),
		len(b.Cache.Zones) > 0 && !slices.ContainsFunc(b.Cache.Zones, above):
		return reason("the cache directive does not keep the denials of zone %s; let it keep them", domain)
	}
	return b.cutForwardProblem(domain, above, below)
}

// cutForwardProblem returns why one upstream does not answer for all names in domain.
func (b *Block) cutForwardProblem(domain string, above, below func(string) bool) error {
	for _, f := range b.Forwards {
		switch {
		case below(f.From) || slices.ContainsFunc(f.Except, below):
			return reason("a forward directive treats some names below %s differently, so the upstream of a name and of its ancestor may differ; move them to a server block of their own", domain)
		case above(f.From) && !slices.ContainsFunc(f.Except, above):
			return nil
		}
	}
	return reason("no forward directive of the block takes zone %s, and only an upstream's denial is a cut; add forward", domain)
}

func (c *SearchCut) describe() []string {
	if c.Off {
		return []string{"off"}
	}
	return []string{"below " + wordsOr(c.Zones, "the cluster domain")}
}
