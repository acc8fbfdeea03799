package config

import "log/slog"

// parseErrors reads errors [stdout] and its options. CoreDNS has no other log
// destination either.
func parseErrors(b *Block, s statement) error {
	if err := s.arity(0, 1, "[stdout]"); err != nil {
		return err
	}
	if len(s.args) == 1 && s.args[0].text != "stdout" {
		return s.errorf("unexpected argument %q, expected: errors [stdout]", s.args[0].text)
	}
	b.Errors = &Errors{Line: s.line}
	return s.eachOption(func(string) bool { return true }, func(o statement) error {
		switch o.text {
		case "consolidate":
			return parseConsolidate(b.Errors, o)
		case "stacktrace": // the stack of a panic is always logged
			return o.arity(0, 0, "")
		}
		return o.unknown()
	})
}

func parseConsolidate(e *Errors, o statement) error {
	if err := o.arity(2, 4, "DURATION REGEXP [LEVEL] [show_first]"); err != nil {
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
	rest := o.argTexts()[2:]
	if n := len(rest); n > 0 && rest[n-1] == "show_first" {
		c.ShowFirst, rest = true, rest[:n-1]
	}
	if len(rest) > 1 {
		return o.errorf("unexpected argument %q, expected: consolidate DURATION REGEXP [LEVEL] [show_first]", rest[1])
	}
	if len(rest) == 1 {
		if c.Level, err = parseLevel(rest[0]); err != nil {
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
	return 0, reason("level %q is not one of debug, info, warning, error", text)
}
