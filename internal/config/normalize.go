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
		return oneArg(o, "off|observe|sibling", &n.Mode, oneOf(NormalizeOff, NormalizeObserve, NormalizeSibling))
	case "signature":
		return parseChoice(o, &n.Bare, "bare", "any")
	case "sibling_timeout":
		return oneArg(o, "DURATION", &n.Timeout, durationWithin(time.Millisecond, maxSiblingTimeout))
	case "ttl":
		return oneArg(o, "DURATION", &n.TTL, durationWithin(time.Second, maxNormalizeTTL))
	case "except":
		return n.parseExcept(o)
	case "repair":
		return parseChoice(o, &n.Repair, "on", "off")
	}
	return o.unknown()
}

// parseChoice sets to if the argument is yes and clears it if it is no.
func parseChoice(o statement, to *bool, yes, no string) error {
	var choice string
	err := oneArg(o, yes+"|"+no, &choice, oneOf(yes, no))
	*to = choice == yes
	return err
}

func (n *Normalize) parseExcept(o statement) error {
	if err := o.arity(1, -1, "ZONE…"); err != nil {
		return err
	}
	zones, err := parseZoneList(o, 0)
	n.Except = append(n.Except, zones...)
	return err
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
