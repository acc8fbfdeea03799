package config

import (
	"math"
	"strings"
	"time"
)

// CoreDNS's defaults and limits.
const (
	defaultEntries     = 9984
	defaultSuccessTTL  = time.Hour
	defaultDenialTTL   = 30 * time.Minute
	defaultMinTTL      = 5 * time.Second
	defaultServFail    = 5 * time.Second
	maxServFail        = 5 * time.Minute
	defaultPrefetchGap = time.Minute
	defaultPrefetchPct = 10
	defaultStale       = time.Hour
)

// parseCache reads cache [TTL] [ZONES…] and its options. The TTL is the upper bound
// for success and denial, unless these options set their own.
func parseCache(b *Block, s statement) error {
	c := &Cache{
		Line:     s.line,
		Success:  CacheClass{Entries: defaultEntries, MaxTTL: defaultSuccessTTL, MinTTL: defaultMinTTL},
		Denial:   CacheClass{Entries: defaultEntries, MaxTTL: defaultDenialTTL, MinTTL: defaultMinTTL},
		ServFail: defaultServFail,
	}
	zonesFrom, err := parseCacheTTL(c, s)
	if err != nil {
		return err
	}
	if c.Zones, err = parseZoneList(s, zonesFrom); err != nil {
		return err
	}
	b.Cache = c
	return s.eachOption(func(name string) bool { return name == "disable" }, c.parseOption)
}

// parseCacheTTL returns the number of arguments that it read, 0 or 1.
func parseCacheTTL(c *Cache, s statement) (int, error) {
	if len(s.args) == 0 {
		return 0, nil
	}
	text := s.args[0].text
	if isDigits(strings.TrimLeft(text, "+-")) {
		ttl, err := parseTTL("TTL", text, 1)
		if err != nil {
			return 0, s.fail(err)
		}
		c.Success.MaxTTL, c.Denial.MaxTTL = ttl, ttl
		return 1, nil
	}
	// CoreDNS reads 30s as a zone and then caches almost nothing.
	if _, err := time.ParseDuration(text); err == nil {
		return 0, s.errorf("TTL %q is a duration: write a number of seconds", text)
	}
	return 0, nil
}

func (c *Cache) parseOption(o statement) error {
	switch o.text {
	case "success":
		return parseCacheClass(&c.Success, o)
	case "denial":
		return parseCacheClass(&c.Denial, o)
	case "prefetch":
		return parsePrefetch(c, o)
	case "serve_stale":
		return parseServeStale(c, o)
	case "servfail":
		return parseServFail(c, o)
	case "disable":
		return parseDisable(c, o)
	case "keepttl":
		return setFlag(o, &c.KeepTTL)
	}
	return o.unknown()
}

// parseTTL reads seconds, at most the largest TTL (RFC 2181, section 8).
func parseTTL(what, text string, least int) (time.Duration, error) {
	n, err := parseNumber(what, text, least, math.MaxInt32)
	return time.Duration(n) * time.Second, err
}

func parseCacheClass(class *CacheClass, o statement) error {
	o.surplus(3)
	if err := o.arity(1, 3, "CAPACITY [TTL [MINTTL]]"); err != nil {
		return err
	}
	var err error
	if class.Entries, err = parseNumber("capacity", o.args[0].text, 1, math.MaxInt32); err != nil {
		return o.fail(err)
	}
	if len(o.args) > 1 {
		if class.MaxTTL, err = parseTTL("TTL", o.args[1].text, 1); err != nil {
			return o.fail(err)
		}
	}
	if len(o.args) > 2 {
		if class.MinTTL, err = parseTTL("minimum TTL", o.args[2].text, 0); err != nil {
			return o.fail(err)
		}
		class.MinTTLSet = true
	}
	return nil
}

// parsePrefetch reads prefetch. An amount of 0 turns prefetching off.
func parsePrefetch(c *Cache, o statement) error {
	if err := o.arity(1, 3, "AMOUNT [DURATION [PERCENTAGE%]]"); err != nil {
		return err
	}
	p := &Prefetch{Duration: defaultPrefetchGap, Percentage: defaultPrefetchPct}
	var err error
	if p.Amount, err = parseNumber("amount", o.args[0].text, 0, math.MaxInt32); err != nil {
		return o.fail(err)
	}
	if len(o.args) > 1 {
		if p.Duration, err = parsePositiveDuration("duration", o.args[1].text); err != nil {
			return o.fail(err)
		}
	}
	if len(o.args) > 2 {
		if p.Percentage, err = parsePercentage(o.args[2].text); err != nil {
			return o.fail(err)
		}
	}
	if p.Amount > 0 {
		c.Prefetch = p
	}
	return nil
}

func parsePercentage(text string) (int, error) {
	number, found := strings.CutSuffix(text, "%")
	if !found {
		return 0, reason("percentage %q must end with %%", text)
	}
	return parseNumber("percentage", number, 10, 90)
}

// parseServeStale reads serve_stale. A duration of 0 turns stale answers off.
func parseServeStale(c *Cache, o statement) error {
	if err := o.arity(0, 2, "[DURATION [immediate|verify]]"); err != nil {
		return err
	}
	stale := &ServeStale{For: defaultStale}
	if len(o.args) > 0 {
		if o.args[0].text == "immediate" || o.args[0].text == "verify" {
			return o.errorf("%s must follow a duration: serve_stale 1h %s", o.args[0].text, o.args[0].text)
		}
		var err error
		if stale.For, err = parseDuration("duration", o.args[0].text); err != nil {
			return o.fail(err)
		}
	}
	if len(o.args) > 1 {
		switch strings.ToLower(o.args[1].text) {
		case "immediate":
		case "verify":
			stale.Verify = true
		default:
			return o.errorf("refresh mode %q is not one of immediate, verify", o.args[1].text)
		}
	}
	if stale.For > 0 {
		c.Stale = stale
	}
	return nil
}

func parseServFail(c *Cache, o statement) error {
	if err := o.arity(1, 1, "DURATION"); err != nil {
		return err
	}
	d, err := parseDuration("duration", o.args[0].text)
	if err != nil {
		return o.fail(err)
	}
	if d > maxServFail {
		return o.errorf("duration %s is too long: failures are cached for at most 5m (RFC 2308, section 7)", o.args[0].text)
	}
	c.ServFail = d
	return nil
}

func parseDisable(c *Cache, o statement) error {
	if err := o.arity(1, -1, "success|denial [ZONES…]"); err != nil {
		return err
	}
	var class *CacheClass
	switch o.args[0].text {
	case "success":
		class = &c.Success
	case "denial":
		class = &c.Denial
	default:
		return o.errorf("%q is not one of success, denial", o.args[0].text)
	}
	if class.Disabled {
		o.warnf("%s is given twice; the last one applies", o.args[0].text)
	}
	var err error
	class.Disabled = true
	class.DisabledOnly, err = parseZoneList(o, 1)
	return err
}
