package config

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// BlockText is a server block in words.
type BlockText struct {
	File       string          `json:"file"`
	Line       int             `json:"line"`
	Zones      []string        `json:"zones"`
	Directives []DirectiveText `json:"directives"`
}

// DirectiveText is a directive in words, with every value that applies.
type DirectiveText struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// Text returns every block of c, with the defaults. The directives of a block come in
// the order of Directives.
func (c *Config) Text() []BlockText {
	blocks := make([]BlockText, len(c.Blocks))
	for i, b := range c.Blocks {
		blocks[i] = b.text()
	}
	return blocks
}

func (b *Block) text() BlockText {
	t := BlockText{File: b.File, Line: b.Line}
	for _, z := range b.Zones {
		t.Zones = append(t.Zones, z.String())
	}
	for _, d := range Directives() {
		for _, values := range d.describe(b) {
			t.Directives = append(t.Directives, DirectiveText{d.Name, values})
		}
	}
	return t
}

// Describe prints Text: a heading for each block and a line for each directive.
func (c *Config) Describe(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i, b := range c.Text() {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "%s:%d: %s\n", b.File, b.Line, strings.Join(b.Zones, " "))
		for _, d := range b.Directives {
			fmt.Fprintf(out, "  %-10s  %s\n", d.Name, strings.Join(d.Values, "; "))
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("describe %s: %w", c.File, err)
	}
	return nil
}

// describer is the type of a directive's values.
type describer interface {
	comparable
	describe() []string
}

// each describes the directives that are not nil.
func each[T describer](directives ...T) [][]string {
	var absent T
	var lines [][]string
	for _, d := range directives {
		if d != absent {
			lines = append(lines, d.describe())
		}
	}
	return lines
}

// ifSet describes a directive without values.
func ifSet(set bool, text string) [][]string {
	if !set {
		return nil
	}
	return [][]string{{text}}
}

func (b *Block) describeBind() []string {
	hosts := "every address"
	if len(b.Bind) > 0 {
		hosts = words(b.Bind)
	}
	if len(b.BindExcept) == 0 {
		return []string{hosts}
	}
	return []string{hosts, "except " + words(b.BindExcept)}
}

func (n *NSID) describe() []string {
	if n.Text == "" {
		return []string{"the host name"}
	}
	return []string{strconv.Quote(n.Text)}
}

func (s *BufSize) describe() []string { return []string{strconv.Itoa(s.Size)} }

func (p *Prometheus) describe() []string { return []string{p.Addr} }

func (r *Ready) describe() []string { return []string{r.Addr} }

func (h *Health) describe() []string {
	return []string{h.Addr, "lameduck " + durationOrOff(h.Lameduck)}
}

func (c *Cache) describe() []string {
	return []string{
		"zones " + wordsOr(c.Zones, "of the block"),
		"success " + c.Success.describe(),
		"denial " + c.Denial.describe(),
		"servfail " + durationOrOff(c.ServFail),
		"prefetch " + c.Prefetch.describe(),
		"serve_stale " + c.Stale.describe(),
		"keepttl " + onOff(c.KeepTTL),
	}
}

func (c CacheClass) describe() string {
	// If MinTTL exceeds MaxTTL, MaxTTL applies.
	least := min(c.MinTTL, c.MaxTTL)
	bounds := fmt.Sprintf("%d entries, TTL %s to %s", c.Entries, durationText(least), durationText(c.MaxTTL))
	switch {
	case !c.Disabled:
		return bounds
	case len(c.DisabledOnly) == 0:
		return "disabled"
	}
	return bounds + ", disabled for " + words(c.DisabledOnly)
}

func (p *Prefetch) describe() string {
	if p == nil {
		return "off"
	}
	return fmt.Sprintf("after %d queries at most %s apart, with %d%% of the TTL left",
		p.Amount, durationText(p.Duration), p.Percentage)
}

func (s *ServeStale) describe() string {
	switch {
	case s == nil:
		return "off"
	case s.Verify:
		return durationText(s.For) + " verify"
	}
	return durationText(s.For) + " immediate"
}

func (f *Forward) describe() []string {
	to := make([]string, len(f.To))
	for i, u := range f.To {
		to[i] = u.String()
	}
	limit := "no limit"
	if f.MaxConcurrent > 0 {
		limit = strconv.Itoa(f.MaxConcurrent)
	}
	first := f.From + " to "
	if f.KubernetesEndpoints {
		first += "the endpoints of the cluster DNS, else "
	}
	return []string{
		first + strings.Join(to, " "),
		"except " + wordsOr(f.Except, "none"),
		"force_tcp " + onOff(f.ForceTCP),
		"prefer_udp " + onOff(f.PreferUDP),
		"policy " + string(f.Policy),
		"max_fails " + strconv.Itoa(f.MaxFails),
		"expire " + durationText(f.Expire),
		"health_check " + f.HealthCheck.describe(),
		"max_concurrent " + limit,
		"tls " + f.TLS.describe(),
		"tls_servername " + wordsOr(nonEmpty(f.TLSServerName), "none"),
	}
}

// Key is equal for two forwards with the same settings. It names the files of
// the tls option, not their content.
func (f *Forward) Key() string { return fmt.Sprintf("forward %q", f.describe()) }

// String returns u in the syntax of forward, with its port.
func (u Upstream) String() string {
	switch {
	case u.ResolvConf != "":
		return word(u.ResolvConf)
	case u.ServerName != "":
		return "tls://" + u.Addr.String() + "%" + u.ServerName
	case u.TLS:
		return "tls://" + u.Addr.String()
	}
	return u.Addr.String()
}

func (h HealthCheck) describe() string {
	text := "every " + durationText(h.Interval) + " domain " + h.Domain
	if !h.RecursionDesired {
		return text + " no_rec"
	}
	return text + " recursion desired"
}

func (t *TLS) describe() string {
	if t == nil {
		t = &TLS{}
	}
	return "cert " + wordsOr(nonEmpty(t.Cert), "none") +
		", key " + wordsOr(nonEmpty(t.Key), "none") +
		", CA " + wordsOr(nonEmpty(t.CA), "of the system")
}

func (h *Hosts) describe() []string {
	inline := make([]string, len(h.Inline))
	for i, e := range h.Inline {
		inline[i] = e.Addr.String() + " " + words(e.Names)
	}
	return []string{
		"file " + word(h.Path),
		"zones " + wordsOr(h.Zones, "of the block"),
		"ttl " + strconv.FormatUint(uint64(h.TTL), 10),
		"no_reverse " + onOff(h.NoReverse),
		"reload " + durationOrOff(h.Reload),
		"fallthrough " + h.describeFallthrough(),
		"inline " + orNone(strings.Join(inline, ", ")),
	}
}

// Key is equal for two hosts directives with the same settings.
func (h *Hosts) Key() string { return fmt.Sprintf("hosts %q", h.describe()) }

func (h *Hosts) describeFallthrough() string {
	text := wordsOr(h.Fallthrough, "none")
	if h.FallthroughUnsupported {
		text += ", other types too"
	}
	return text
}

func (e *Errors) describe() []string {
	values := []string{"logged"}
	for _, c := range e.Consolidate {
		text := fmt.Sprintf("consolidate %s %s %s", durationText(c.Period), strconv.Quote(c.Pattern.String()), levelText(c.Level))
		if c.ShowFirst {
			text += " show_first"
		}
		values = append(values, text)
	}
	return values
}

func (r *Reload) describe() []string {
	if r.Interval == 0 {
		return []string{"off"}
	}
	return []string{"every " + durationText(r.Interval), "jitter " + durationText(r.Jitter)}
}

func (l *Log) describe() []string {
	values := []string{"names " + strings.Join(l.Names, " "), "class " + joined(l.Classes, " ")}
	if l.Format != "" {
		values = append(values, "format "+strconv.Quote(l.Format))
	}
	return values
}

func (d *Dnstap) describe() []string {
	reader := d.Network + "://" + d.Address
	if d.TLS {
		reader = "tls://" + d.Address
	}
	values := []string{reader, "full " + onOff(d.Full)}
	for _, o := range [][2]string{{"identity", d.Identity}, {"version", d.Version}, {"extra", d.Extra}} {
		if o[1] != "" {
			values = append(values, o[0]+" "+strconv.Quote(o[1]))
		}
	}
	if d.SkipVerify {
		values = append(values, "skipverify")
	}
	return values
}

// Key is equal for directives that share a connection.
func (d *Dnstap) Key() string { return fmt.Sprintf("dnstap %q", d.describe()) }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

func wordsOr(texts []string, none string) string {
	if len(texts) == 0 {
		return none
	}
	return words(texts)
}

func words(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = word(t)
	}
	return strings.Join(quoted, " ")
}

// word quotes text that does not look like one word.
func word(text string) string {
	odd := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == ';' || r == '"' }
	if strings.ContainsFunc(text, odd) {
		return strconv.Quote(text)
	}
	return text
}

func levelText(level slog.Level) string {
	if level == slog.LevelWarn {
		return "warning"
	}
	return strings.ToLower(level.String())
}

func durationOrOff(d time.Duration) string {
	if d == 0 {
		return "off"
	}
	return durationText(d)
}

// durationText is d.String without trailing zero units: 1h, not 1h0m0s.
func durationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
