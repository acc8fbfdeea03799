package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parseDuration reads a Go duration that is not negative. Errors call it what.
func parseDuration(what, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		if _, err := strconv.ParseUint(text, 10, 32); err == nil {
			return 0, reason("%s %q has no unit, did you mean %ss?", what, text, text)
		}
		return 0, reason("%s %q is not a duration such as 500ms, 30s or 1h", what, text)
	}
	if d < 0 {
		return 0, reason("%s %q is negative", what, text)
	}
	return d, nil
}

func parsePositiveDuration(what, text string) (time.Duration, error) {
	d, err := parseDuration(what, text)
	if err == nil && d == 0 {
		err = reason("%s must be greater than 0", what)
	}
	return d, err
}

// oneArg parses the only argument of o and stores the value in to.
func oneArg[T any](o statement, usage string, to *T, parse func(text string) (T, error)) error {
	if err := o.arity(1, 1, usage); err != nil {
		return err
	}
	v, err := parse(o.args[0].text)
	if err != nil {
		return o.fail(err)
	}
	*to = v
	return nil
}

// setFlag sets to, an option without arguments.
func setFlag(o statement, to *bool) error {
	*to = true
	return o.arity(0, 0, "")
}

// oneOf returns a parser that accepts only values.
func oneOf[T ~string](values ...T) func(text string) (T, error) {
	return func(text string) (T, error) {
		if v := T(text); slices.Contains(values, v) {
			return v, nil
		}
		return "", reason("%q is not one of %s", text, joined(values, ", "))
	}
}

func joined[T ~string](values []T, separator string) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	return strings.Join(texts, separator)
}

// number returns a parser for whole numbers from least to most.
func number(what string, least, most int) func(text string) (int, error) {
	return func(text string) (int, error) { return parseNumber(what, text, least, most) }
}

// duration parses a Go duration that is not negative.
func duration(text string) (time.Duration, error) { return parseDuration("duration", text) }

// durationWithin returns a parser for durations from least to most.
func durationWithin(least, most time.Duration) func(text string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := duration(text)
		if err == nil && (d < least || d > most) {
			err = reason("duration %s is out of range, expected %s to %s", text, durationText(least), durationText(most))
		}
		return d, err
	}
}

// parseNumber reads a whole number from least to most.
func parseNumber(what, text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil && !isDigits(strings.TrimLeft(text, "+-")) {
		return 0, reason("%s %q is not a number", what, text)
	}
	if err != nil || n < least || n > most {
		return 0, reason("%s %s is out of range, expected %d to %d", what, text, least, most)
	}
	return n, nil
}

func isDigits(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

// parseListen checks HOST:PORT, where HOST may be empty, an address or a name.
func parseListen(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", reason("address %q is not of the form HOST:PORT, :PORT or [IPV6]:PORT", text)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", reason("address %q: port %q is not a number from 0 to 65535", text, port)
	}
	if host == "" {
		return text, nil
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return text, nil
	}
	if strings.Contains(host, ":") || isDigits(strings.ReplaceAll(host, ".", "")) {
		return "", reason("address %q: %q is not an IP address", text, host)
	}
	if _, err := parseName(host); err != nil {
		return "", reason("address %q: %v", text, err)
	}
	return text, nil
}

// listenArg reads the optional address of health, pprof, prometheus and ready.
func listenArg(s statement, fallback string) (string, error) {
	if err := s.arity(0, 1, "[HOST:PORT]"); err != nil {
		return "", err
	}
	if len(s.args) == 0 {
		return fallback, nil
	}
	addr, err := parseListen(s.args[0].text)
	if err != nil {
		return "", s.fail(err)
	}
	return addr, nil
}

// ParseBytes parses a size such as 64M.
func ParseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "KMGi")
	shift, ok := map[string]uint{"": 0, "K": 10, "Ki": 10, "M": 20, "Mi": 20, "G": 30, "Gi": 30}[s[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || n <= 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size; write a number of bytes, or a number with K, M or G", s)
	}
	return n << shift, nil
}
