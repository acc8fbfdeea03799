package cache

import (
	"math"
	"slices"

	"github.com/miekg/dns"
)

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

// positiveTTL clamps ttls, the result of records.ttls, and returns for how many
// seconds a positive answer is fresh. 0 means that the answer must not be cached;
// ttls are unchanged then.
//
// Only the answer section counts. Authority and additional records are separate
// RRsets of lower rank (RFC 2181 §5.4.1). If one expires before the answer, it is
// sent with TTL 0.
func positiveTTL(r *records, ttls []uint32, b bounds) uint32 {
	life := b.clamp(slices.Min(ttls[:r.answers]))
	if life == 0 {
		return 0
	}
	for i, ttl := range ttls {
		ttls[i] = b.clamp(ttl)
	}
	return life
}

// denialTTL is positiveTTL for a denial. It returns the smallest of the SOA's
// TTL, the SOA's MINIMUM (RFC 2308 §5) and the TTLs of the CNAMEs before it, and
// at most noSOATTL without an SOA. No record outlives the denial, so the SOA
// shows the time left.
func denialTTL(r *records, ttls []uint32, b bounds) uint32 {
	life := uint32(math.MaxInt32)
	if r.answers > 0 {
		life = slices.Min(ttls[:r.answers])
	}
	if soa := soaOf(r); soa != nil {
		life = b.clamp(min(life, soaTTL(soa)))
	} else {
		life = min(life, noSOATTL, b.max)
	}
	if life == 0 {
		return 0
	}
	for i, ttl := range ttls {
		ttls[i] = min(b.clamp(ttl), life)
	}
	return life
}

func soaTTL(soa *dns.SOA) uint32 {
	return min(normalTTL(soa.Hdr.Ttl), normalTTL(soa.Minttl))
}
