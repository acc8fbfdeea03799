package config

import "time"

// NormalizeMode is the mode of the normalize directive.
type NormalizeMode string

// The modes. Off and observe do not change replies.
const (
	NormalizeOff     NormalizeMode = "off"
	NormalizeObserve NormalizeMode = "observe"
	NormalizeSibling NormalizeMode = "sibling"
)

// Normalize is the normalize directive. It turns empty answers for names that do
// not exist into NXDOMAIN.
type Normalize struct {
	Line     int
	Suffixes []string // fully qualified; empty: the host's search list
	Mode     NormalizeMode
	Bare     bool          // signature bare: only answers without SOA
	Timeout  time.Duration // for the lookup of the other address type
	TTL      time.Duration // maximum, without SOA or if the lookup failed
	Except   []string      // fully qualified
	Repair   bool
}

// Limits of normalize. A stub resolver times out after 5 s.
const (
	defaultSiblingTimeout = 300 * time.Millisecond
	maxSiblingTimeout     = 2 * time.Second
	defaultNormalizeTTL   = 5 * time.Second
	maxNormalizeTTL       = time.Hour
)

// DefaultNormalize returns the settings of a block without the directive.
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
	return o.unknown()
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
	return o.errorf("%q is not one of off, observe, sibling", o.args[0].text)
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
		return o.errorf("%q is not one of bare, any", o.args[0].text)
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
		return o.errorf("%q is not one of on, off", o.args[0].text)
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
		return o.errorf("duration %s is out of range, expected %s to %s", o.args[0].text, durationText(least), durationText(most))
	}
	*to = d
	return nil
}

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
