package config

import "time"

// NormalizeMode says what the normalize directive does.
type NormalizeMode string

// The modes. Off and observe leave every reply as upstream said it.
const (
	NormalizeOff     NormalizeMode = "off"
	NormalizeObserve NormalizeMode = "observe"
	NormalizeSibling NormalizeMode = "sibling"
)

// Normalize is the normalize directive: empty answers for names that do not
// exist become NXDOMAIN.
type Normalize struct {
	Line     int
	Suffixes []string // fully qualified; empty: the host's search list
	Mode     NormalizeMode
	Bare     bool          // signature bare: only answers without SOA
	Timeout  time.Duration // of the wait for the other address type
	TTL      time.Duration // at most, without SOA or certainty
	Except   []string      // fully qualified
	Repair   bool
}

// Limits of normalize: a stub waits no longer than 5 s for a reply in all.
const (
	defaultSiblingTimeout = 300 * time.Millisecond
	maxSiblingTimeout     = 2 * time.Second
	defaultNormalizeTTL   = 5 * time.Second
	maxNormalizeTTL       = time.Hour
)

func normalizeOptions() []string {
	return []string{"mode", "signature", "sibling_timeout", "ttl", "except", "repair"}
}

// DefaultNormalize is normalize as it is without being written.
func DefaultNormalize() *Normalize {
	return &Normalize{
		Mode: NormalizeSibling, Timeout: defaultSiblingTimeout, TTL: defaultNormalizeTTL, Repair: true,
	}
}

// parseNormalize reads normalize [SUFFIX…] and its options.
func parseNormalize(b *Block, s statement) error {
	n := DefaultNormalize()
	n.Line = s.line
	var err error
	if n.Suffixes, err = parseZoneList(s, 0); err != nil {
		return err
	}
	b.Normalize = n
	return s.eachOption(nil, n.parseOption)
}

func (n *Normalize) parseOption(o statement) error {
	switch o.text {
	case "mode":
		return n.parseMode(o)
	case "signature":
		return n.parseSignature(o)
	case "sibling_timeout":
		return parseNormalizeDuration(o, &n.Timeout, time.Millisecond, maxSiblingTimeout)
	case "ttl":
		return parseNormalizeDuration(o, &n.TTL, time.Second, maxNormalizeTTL)
	case "except":
		return n.parseExcept(o)
	case "repair":
		return n.parseRepair(o)
	}
	return o.unknown(normalizeOptions(), nil)
}

func (n *Normalize) parseMode(o statement) error {
	if err := o.arity(1, 1, "off|observe|sibling"); err != nil {
		return err
	}
	switch m := NormalizeMode(o.args[0].text); m {
	case NormalizeOff, NormalizeObserve, NormalizeSibling:
		n.Mode = m
		return nil
	}
	return o.errorf("%q is not one of off, observe and sibling", o.args[0].text)
}

func (n *Normalize) parseSignature(o statement) error {
	if err := o.arity(1, 1, "bare|any"); err != nil {
		return err
	}
	switch o.args[0].text {
	case "bare":
		n.Bare = true
	case "any":
		n.Bare = false
	default:
		return o.errorf("%q is not one of bare and any", o.args[0].text)
	}
	return nil
}

func (n *Normalize) parseExcept(o statement) error {
	if err := o.arity(1, -1, "ZONE…"); err != nil {
		return err
	}
	zones, err := parseZoneList(o, 0)
	n.Except = append(n.Except, zones...)
	return err
}

func (n *Normalize) parseRepair(o statement) error {
	if err := o.arity(1, 1, "on|off"); err != nil {
		return err
	}
	switch o.args[0].text {
	case "on":
		n.Repair = true
	case "off":
		n.Repair = false
	default:
		return o.errorf("%q is not one of on and off", o.args[0].text)
	}
	return nil
}

func parseNormalizeDuration(o statement, to *time.Duration, least, most time.Duration) error {
	if err := o.arity(1, 1, "DURATION"); err != nil {
		return err
	}
	d, err := parseDuration("duration", o.args[0].text)
	if err != nil {
		return o.fail(err)
	}
	if d < least || d > most {
		return o.errorf("duration %s is out of range, allowed are %s to %s", o.args[0].text, durationText(least), durationText(most))
	}
	*to = d
	return nil
}

// describe is for Describe.
func (n *Normalize) describe() []string {
	signature := "any"
	if n.Bare {
		signature = "bare"
	}
	return []string{
		"suffixes " + wordsOr(n.Suffixes, "of the host's search list"),
		"mode " + string(n.Mode),
		"signature " + signature,
		"sibling_timeout " + durationText(n.Timeout),
		"ttl " + durationText(n.TTL),
		"except " + wordsOr(n.Except, "none"),
		"repair " + onOff(n.Repair),
	}
}
