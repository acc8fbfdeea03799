package config

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RedirectMode says whether the sockets of pods are redirected to the daemon.
type RedirectMode string

// The modes. Auto turns redirection on if pods do not reach the local addresses.
const (
	RedirectOff  RedirectMode = "off"
	RedirectAuto RedirectMode = "auto"
	RedirectOn   RedirectMode = "on"
)

// Bounds of the heartbeat option.
const (
	MinRedirectHeartbeat = 300 * time.Millisecond
	MaxRedirectHeartbeat = 500 * time.Millisecond
)

// Redirect is the redirect directive. It applies to the process, not to its block,
// and a Corefile has at most one. Options that are absent are zero or empty.
type Redirect struct {
	File      string
	Line      int
	Mode      RedirectMode
	Targets   []RedirectTarget // at most one of each address family and one without address
	Services  []netip.AddrPort // port 0: the default port
	Fallbacks []netip.AddrPort // default port 53
	Heartbeat time.Duration
	OptOut    []PodName
	Uplinks   []string // names of interfaces
}

// RedirectTarget is the destination of redirected sockets. The address may be
// invalid or the port 0 if it is not given.
type RedirectTarget struct {
	Addr netip.Addr
	Port uint16
}

// String returns t in the syntax of the target option.
func (t RedirectTarget) String() string {
	switch {
	case !t.Addr.IsValid():
		return ":" + strconv.Itoa(int(t.Port))
	case t.Port == 0:
		return t.Addr.String()
	}
	return netip.AddrPortFrom(t.Addr, t.Port).String()
}

// PodName is a pod or, if Name is empty, all pods of a namespace.
type PodName struct{ Namespace, Name string }

// String returns p in the syntax of the opt_out option.
func (p PodName) String() string {
	if p.Name == "" {
		return p.Namespace
	}
	return p.Namespace + "/" + p.Name
}

// Covers reports whether p is the pod, or its namespace.
func (p PodName) Covers(pod PodName) bool {
	return p.Namespace == pod.Namespace && (p.Name == "" || p.Name == pod.Name)
}

// parseRedirect reads redirect [off|auto|on] and its options.
func parseRedirect(b *Block, s statement) error {
	if err := s.arity(0, 1, "[off|auto|on]"); err != nil {
		return err
	}
	r := &Redirect{File: s.file, Line: s.line, Mode: RedirectAuto}
	if len(s.args) == 1 {
		mode, err := ParseRedirectMode(s.args[0].text)
		if err != nil {
			return s.fail(err)
		}
		r.Mode = mode
	}
	b.Redirect = r
	return s.eachOption(func(name string) bool { return name != "heartbeat" }, r.parseOption)
}

func (r *Redirect) parseOption(o statement) error {
	switch o.text {
	case "target":
		return eachArg(o, "[ADDRESS][:PORT]…", &r.Targets, parseRedirectTarget)
	case "service":
		return eachArg(o, "ADDRESS[:PORT]…", &r.Services, parseRedirectService)
	case "fallback":
		return eachArg(o, "ADDRESS[:PORT]…", &r.Fallbacks, parseRedirectFallback)
	case "kubepods":
		return o.errorf("the option was removed: use the flag -kubepods, because nodes may differ")
	case "heartbeat":
		return oneArg(o, "DURATION", &r.Heartbeat, durationWithin(MinRedirectHeartbeat, MaxRedirectHeartbeat))
	case "opt_out":
		return eachArg(o, "NAMESPACE[/POD]…", &r.OptOut, parsePodName)
	case "uplink":
		return eachArg(o, "INTERFACE…", &r.Uplinks, parseInterface)
	}
	return o.unknown()
}

// eachArg parses the arguments of o and appends them to list. It refuses duplicates.
func eachArg[T comparable](o statement, usage string, list *[]T, parse func(string) (T, error)) error {
	if err := o.arity(1, -1, usage); err != nil {
		return err
	}
	var errs []error
	for _, arg := range o.args {
		v, err := parse(arg.text)
		switch {
		case err != nil:
			errs = append(errs, o.fail(err))
		case slices.Contains(*list, v):
			errs = append(errs, o.errorf("%s is given twice", arg.text))
		default:
			*list = append(*list, v)
		}
	}
	return errors.Join(errs...)
}

// ParseRedirectMode reads off, auto or on.
func ParseRedirectMode(text string) (RedirectMode, error) {
	return oneOf(RedirectOff, RedirectAuto, RedirectOn)(text)
}

// parseRedirectTarget reads ADDRESS, ADDRESS:PORT or :PORT.
func parseRedirectTarget(text string) (RedirectTarget, error) {
	if port, found := strings.CutPrefix(text, ":"); found && isDigits(port) {
		n, err := parseNumber("port", port, 1, 65535)
		return RedirectTarget{Port: uint16(n)}, err
	}
	ap, err := parseUnicast(text, 0)
	return RedirectTarget{Addr: ap.Addr(), Port: ap.Port()}, err
}

// parseRedirectService reads an address that applications query; the port is 0 if it
// is not given.
func parseRedirectService(text string) (netip.AddrPort, error) { return parseUnicast(text, 0) }

// parseRedirectFallback reads an address that pods query while the daemon does not
// answer.
func parseRedirectFallback(text string) (netip.AddrPort, error) { return parseUnicast(text, dnsPort) }

// parseUnicast reads ADDRESS or ADDRESS:PORT.
func parseUnicast(text string, defaultPort uint16) (netip.AddrPort, error) {
	ap, err := parseUpstreamAddr(text, defaultPort)
	if err != nil {
		return netip.AddrPort{}, reason("%q is not of the form ADDRESS, ADDRESS:PORT or [IPV6]:PORT", text)
	}
	a := ap.Addr().Unmap()
	if a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
		return netip.AddrPort{}, reason("%q is not a unicast address", text)
	}
	return netip.AddrPortFrom(a, ap.Port()), nil
}

// parsePodName reads NAMESPACE or NAMESPACE/POD.
func parsePodName(text string) (PodName, error) {
	namespace, pod, found := strings.Cut(text, "/")
	if !isKubernetesName(namespace, 63) || found && !isKubernetesName(pod, 253) {
		return PodName{}, reason("%q is not of the form NAMESPACE or NAMESPACE/POD", text)
	}
	return PodName{namespace, pod}, nil
}

// isKubernetesName reports whether text is an RFC 1123 label or, if longest is above
// 63, an RFC 1123 subdomain.
func isKubernetesName(text string, longest int) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	inner := letters + "-"
	if longest > 63 {
		inner += "."
	}
	return text != "" && len(text) <= longest && strings.Trim(text, inner) == "" &&
		strings.Contains(letters, text[:1]) && strings.Contains(letters, text[len(text)-1:])
}

func parseInterface(text string) (string, error) {
	// Interface names in Linux have at most 15 bytes and no slash or colon.
	if len(text) > 15 || strings.ContainsAny(text, "/:[]{},") {
		return "", reason("%q is not an interface name", text)
	}
	return text, nil
}

// checkRedirects refuses a second redirect directive and conflicting targets.
func checkRedirects(blocks []*Block) error {
	var first *Redirect
	var errs []error
	for _, b := range blocks {
		r := b.Redirect
		if r == nil {
			continue
		}
		at := token{file: r.File, line: r.Line}
		if first != nil {
			before := token{file: first.File, line: first.Line}
			errs = append(errs, r.errorf("given twice in the Corefile, first %s; it applies to the process, so write it in one block", before.seenFrom(at)))
			continue
		}
		first = r
		errs = append(errs, r.checkTargets())
	}
	return errors.Join(errs...)
}

func (r *Redirect) errorf(format string, args ...any) error {
	return &Error{File: r.File, Line: r.Line, Directive: "redirect", Err: reason(format, args...)}
}

// checkTargets refuses two targets of one address family.
func (r *Redirect) checkTargets() error {
	seen := make(map[string]RedirectTarget)
	for _, t := range r.Targets {
		kind := "port"
		if t.Addr.IsValid() {
			kind = "IPv6 address"
			if t.Addr.Is4() {
				kind = "IPv4 address"
			}
		}
		if before, ok := seen[kind]; ok {
			return r.errorf("target: %s and %s: only one %s can be the target", before, t, kind)
		}
		seen[kind] = t
	}
	return nil
}

// Redirect returns the redirect directive. Without one the mode is RedirectOff.
func (c *Config) Redirect() Redirect {
	for _, b := range c.Blocks {
		if b.Redirect != nil {
			return *b.Redirect
		}
	}
	return Redirect{Mode: RedirectOff}
}

func (r *Redirect) describe() []string {
	return []string{
		string(r.Mode),
		"target " + listOr(r.Targets, "the node's address"),
		"service " + listOr(r.Services, "the local addresses"),
		"fallback " + listOr(r.Fallbacks, "learnt"),
		"heartbeat " + durationOr(r.Heartbeat, "default"),
		"opt_out " + listOr(r.OptOut, "none"),
		"uplink " + wordsOr(r.Uplinks, "found"),
	}
}

func listOr[T interface{ String() string }](list []T, none string) string {
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = strings.TrimSuffix(v.String(), ":0")
	}
	return wordsOr(texts, none)
}

func durationOr(d time.Duration, none string) string {
	if d == 0 {
		return none
	}
	return durationText(d)
}
