package config

import (
	"log/slog"
)

func errorsOptions() []string { return []string{"consolidate"} }

// parseErrors reads errors [stdout] and its options; CoreDNS knows no other
// place to log to.
func parseErrors(b *Block, s statement) error {
	if err := s.arity(0, 1, "[stdout]"); err != nil {
		return err
	}
	if len(s.args) == 1 && s.args[0].text != "stdout" {
		return s.errorf("unexpected argument %q, expected: errors [stdout]", s.args[0].text)
	}
	b.Errors = &Errors{Line: s.line}
	return s.eachOption(func(name string) bool { return name == "consolidate" }, func(o statement) error {
		if o.text != "consolidate" {
			return o.unknown(errorsOptions(), []string{"stacktrace"})
		}
		return parseConsolidate(b.Errors, o)
	})
}

func parseConsolidate(e *Errors, o statement) error {
	if err := o.arity(2, 3, "DURATION REGEXP [LEVEL]"); err != nil {
		return err
	}
	c := Consolidate{Level: slog.LevelError}
	var err error
	if c.Period, err = parsePositiveDuration("duration", o.args[0].text); err != nil {
		return o.fail(err)
	}
	if c.Pattern, err = parsePattern(o.args[1].text); err != nil {
		return o.fail(err)
	}
	if len(o.args) > 2 {
		if c.Level, err = parseLevel(o.args[2].text); err != nil {
			return o.fail(err)
		}
	}
	e.Consolidate = append(e.Consolidate, c)
	return nil
}

func parseLevel(text string) (slog.Level, error) {
	switch text {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, reason("level %q is none of debug, info, warning and error", text)
}
