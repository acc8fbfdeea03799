package cache

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Class configures one kind of answer.
type Class struct {
	// Entries caps the entries of this kind. Each shard holds an equal part,
	// rounded up, so the total is below Entries plus the number of shards.
	// 0: only the byte budget limits them.
	Entries int
	// MinTTL raises TTLs, MaxTTL lowers them; MaxTTL wins. MaxTTL 0: no bound.
	MinTTL, MaxTTL time.Duration
	// MinTTLSet makes MinTTL raise TTL 0 too. Otherwise TTL 0 is not cached.
	MinTTLSet bool
	// Disabled turns caching of this kind off, in the zones DisabledOnly
	// (fully qualified names) or, if there are none, everywhere.
	Disabled     bool
	DisabledOnly []string
}

// Prefetch refreshes popular entries before they expire. An entry is popular
// after Amount lookups with no gap above Duration (0: 1 minute). It is refreshed
// when at most Percentage (0: 10) of its TTL, or 1 s, is left. Amount 0 turns
// prefetching off.
type Prefetch struct {
	Amount     int
	Duration   time.Duration
	Percentage int
}

// Policy says which answers a Cache stores, and for how long.
type Policy struct {
	Success, Denial Class
	// Zones (fully qualified names) limit caching to these names and the names
	// below them; empty: no limit.
	Zones []string
	// ServFail is the maximum time that a failure is cached, bounded to 1 s to
	// 5 min (RFC 9520 §3.2); 0: failures are not cached. Denial.Entries caps
	// failures too, counted separately from denials.
	ServFail time.Duration
	// KeepTTL sends the original TTLs instead of counting them down.
	KeepTTL  bool
	Prefetch Prefetch
	// StaleFor is how long answers stay usable after their expiry (RFC 8767).
	// With StaleVerify, they are used only after upstream has failed.
	StaleFor    time.Duration
	StaleVerify bool
}

const (
	defaultPrefetchGap     = time.Minute
	defaultPrefetchPercent = 10
)

// policy is a Policy in the form that lookups need. It is immutable.
type policy struct {
	classes     [kinds]class
	zones       []string // see zoneSuffixes; nil: all
	servFail    uint32   // seconds
	keepTTL     bool
	prefetch    Prefetch
	staleFor    time.Duration
	staleVerify bool
}

type class struct {
	bounds
	cap      int      // entries per shard
	disabled bool     // everywhere
	except   []string // the zones it is disabled in
}

func compile(p Policy, shards int) *policy {
	c := &policy{
		keepTTL:     p.KeepTTL,
		prefetch:    p.Prefetch,
		staleFor:    max(p.StaleFor, 0),
		staleVerify: p.StaleVerify,
		servFail:    failureSeconds(p.ServFail),
	}
	c.classes[Success] = compileClass(p.Success, shards)
	c.classes[Denial] = compileClass(p.Denial, shards)
	c.classes[Failure].cap = c.classes[Denial].cap
	if len(p.Zones) > 0 {
		c.zones = zoneSuffixes(p.Zones)
	}
	if c.prefetch.Duration <= 0 {
		c.prefetch.Duration = defaultPrefetchGap
	}
	if c.prefetch.Percentage <= 0 {
		c.prefetch.Percentage = defaultPrefetchPercent
	}
	return c
}

func compileClass(p Class, shards int) class {
	c := class{
		bounds:   bounds{min: seconds(p.MinTTL), max: seconds(p.MaxTTL), raise0: p.MinTTLSet},
		cap:      math.MaxInt,
		disabled: p.Disabled && len(p.DisabledOnly) == 0,
	}
	if c.max == 0 {
		c.max = math.MaxInt32
	}
	if p.Entries > 0 {
		c.cap = (p.Entries-1)/shards + 1
	}
	if p.Disabled {
		c.except = zoneSuffixes(p.DisabledOnly)
	}
	return c
}

// seconds rounds d up to seconds, at most the maximum TTL.
func seconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((d-1)/time.Second+1, math.MaxInt32))
}

// keeps reports whether answers of a kind to key's name are cached.
func (p *policy) keeps(k Kind, key []byte) bool {
	c := &p.classes[k]
	if c.disabled || p.zones != nil && !within(key, p.zones) {
		return false
	}
	return len(c.except) == 0 || !within(key, c.except)
}

// zoneSuffixes packs names in lower case. It skips names without a wire format.
func zoneSuffixes(names []string) []string {
	suffixes := make([]string, 0, len(names))
	for _, name := range names {
		var wire [maxNameWire + 1]byte
		n, err := dns.PackDomainName(strings.ToLower(dns.Fqdn(name)), wire[:], 0, nil, false)
		if err == nil {
			suffixes = append(suffixes, string(wire[:n]))
		}
	}
	return suffixes
}

// within reports whether key's name is at or below one of zones.
func within(key []byte, zones []string) bool {
	if len(key) < keyTail {
		return false
	}
	name := key[:len(key)-keyTail]
	for {
		for _, zone := range zones {
			if string(name) == zone {
				return true
			}
		}
		if len(name) == 0 || name[0] == 0 || int(name[0])+1 >= len(name) {
			return false
		}
		name = name[1+int(name[0]):]
	}
}

// classify returns the kind of a, or cacheable false if a serves only its own query
// and leaves the cache unchanged. It reads header, question and sections, not TTLs.
// It distinguishes data, NODATA and neither (RFC 2308 §2.2). A CNAME chain that ends
// without the requested type is NODATA if there is an SOA, else incomplete. NS
// without data and without SOA is a referral.
func (a *answer) classify() (kind Kind, cacheable bool) {
	m := a.msg
	if !m.Response || m.Truncated || m.Opcode != dns.OpcodeQuery || len(m.Question) != 1 {
		return 0, false
	}
	q := m.Question[0]
	// No zone can hold types 0 and OPT, and the meta and question types (RFC 6895 §3.1).
	meta := q.Qtype == dns.TypeNone || q.Qtype == dns.TypeOPT || q.Qtype >= 128 && q.Qtype <= 255
	if meta || q.Qclass == dns.ClassANY || q.Qclass == dns.ClassNONE {
		return 0, false
	}
	switch m.Rcode {
	case dns.RcodeNameError:
		return Denial, true
	case dns.RcodeSuccess:
	default:
		return 0, false
	}
	for _, rr := range m.Answer {
		if rr.Header().Rrtype == q.Qtype {
			return Success, true
		}
	}
	return Denial, a.soa != nil || len(m.Answer) == 0 && !a.referral
}

// noSOATTL is the maximum TTL, in seconds, of a denial without SOA. RFC 2308 §5
// says not to cache it, but the search paths of pods cause many such denials.
const noSOATTL = 5

// bounds are the TTL bounds of a Class in seconds.
type bounds struct {
	min, max uint32
	raise0   bool // TTL 0 is raised to min as well
}

// clamp applies the bounds. TTL 0 means "do not cache" and stays unless raise0 is
// set. The maximum wins over the minimum.
func (b bounds) clamp(ttl uint32) uint32 {
	if ttl > 0 || b.raise0 {
		ttl = max(ttl, b.min)
	}
	return min(ttl, b.max)
}

// limitTTLs clamps the TTLs of an answer of kind k, Success or Denial, and returns for
// how many seconds it is fresh. 0 means that it must not be cached; its TTLs are
// unchanged then.
//
// For data, only the answer section counts. Authority and additional records are
// separate RRsets of lower rank (RFC 2181 §5.4.1). If one expires before the answer,
// it is sent with TTL 0.
//
// A denial is fresh for the smallest of the SOA's TTL, the SOA's MINIMUM (RFC 2308
// §5) and the TTLs of the CNAMEs before it, and at most noSOATTL without an SOA. No
// record outlives the denial, so the SOA shows the time left.
func (a *answer) limitTTLs(k Kind, b bounds) uint32 {
	life, limit := uint32(math.MaxInt32), uint32(math.MaxInt32)
	if n := len(a.msg.Answer); n > 0 {
		life = slices.Min(a.ttls[:n])
	}
	switch {
	case k == Success:
		life = b.clamp(life)
	case a.soa != nil:
		life = b.clamp(min(life, normalTTL(a.soa.Hdr.Ttl), normalTTL(a.soa.Minttl)))
		limit = life
	default:
		life = min(life, noSOATTL, b.max)
		limit = life
	}
	if life == 0 {
		return 0
	}
	for i, ttl := range a.ttls {
		a.ttls[i] = min(b.clamp(ttl), limit)
	}
	return life
}
