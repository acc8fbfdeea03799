package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// reason returns the text of an Error. It takes no %w, because callers do not test
// it.
func reason(format string, args ...any) error {
	return fmt.Errorf(format, args...)
}

// errorf returns an *Error at s. The reason starts with the name of an option.
func (s statement) errorf(format string, args ...any) error {
	return s.fail(reason(format, args...))
}

// warnf adds a warning about text that has no effect.
func (s statement) warnf(format string, args ...any) {
	*s.warnings = append(*s.warnings, s.errorf(format, args...))
}

// surplus keeps only the first most arguments. It warns about the others.
func (s *statement) surplus(most int) {
	for _, a := range s.args[min(most, len(s.args)):] {
		s.warnf("argument %q has no effect", a.text)
	}
	s.args = s.args[:min(most, len(s.args))]
}

func (s statement) fail(err error) error {
	if s.option {
		err = reason("%s: %v", s.text, err)
	}
	return &Error{File: s.file, Line: s.line, Directive: s.directive, Err: err}
}

// argTexts returns the texts of the arguments.
func (s statement) argTexts() []string {
	texts := make([]string, len(s.args))
	for i, a := range s.args {
		texts[i] = a.text
	}
	return texts
}

// arity checks the number of arguments; most < 0 means no maximum. usage is their
// syntax.
func (s statement) arity(least, most int, usage string) error {
	n := len(s.args)
	switch {
	case n >= least && (most < 0 || n <= most):
		return nil
	case most == 0:
		return s.errorf("takes no arguments, got %q", s.args[0].text)
	case n < least:
		return s.errorf("an argument is missing, expected: %s %s", s.text, usage)
	}
	return s.errorf("unexpected argument %q, expected: %s %s", s.args[most].text, s.text, usage)
}

// noBlock refuses a block after a directive without options.
func (s statement) noBlock() error {
	if !s.braced {
		return nil
	}
	return s.errorf("takes no block of options")
}

// eachOption calls parse for every option in the block of s and joins the errors.
// repeats reports whether an option may repeat; nil means none. For other options
// the last one applies, with a warning; directives that CoreDNS does not have refuse
// the second one.
func (s statement) eachOption(repeats func(name string) bool, parse func(o statement) error) error {
	var errs []error
	first := make(map[string]token)
	for _, o := range s.block {
		before, seen := first[o.text]
		again := seen && (repeats == nil || !repeats(o.text))
		d, _ := directive(s.directive)
		if again && !d.own {
			o.warnf("given twice, first %s; the last one applies", before.seenFrom(o.token))
		}
		switch {
		case again && d.own:
			errs = append(errs, o.errorf("given twice, first %s", before.seenFrom(o.token)))
		case o.braced:
			errs = append(errs, o.errorf("takes no block of options"))
		default:
			errs = append(errs, parse(o))
		}
		if !seen {
			first[o.text] = o.token
		}
	}
	return errors.Join(errs...)
}

// seenFrom returns the place of t for an error message at other.
func (t token) seenFrom(other token) string {
	if t.file == other.file {
		return fmt.Sprintf("on line %d", t.line)
	}
	return fmt.Sprintf("at %s:%d", t.file, t.line)
}

// unknown returns the error for an option that its directive does not have. later
// are options of CoreDNS that are not implemented.
func (o statement) unknown(later ...string) error {
	at := func(err error) error {
		return &Error{File: o.file, Line: o.line, Directive: o.directive, Err: err}
	}
	if slices.Contains(later, o.text) {
		return at(reason("option %q is not supported", o.text))
	}
	d, _ := directive(o.directive)
	known := d.optionNames()
	if len(known) == 0 {
		return at(reason("unknown option %q, the directive has no options", o.text))
	}
	if guess := Nearest(o.text, known); guess != "" {
		return at(reason("unknown option %q, did you mean %s?", o.text, guess))
	}
	return at(reason("unknown option %q, expected one of: %s", o.text, strings.Join(known, ", ")))
}

// words refuses empty words and placeholders in s and its options.
func (s statement) words() error {
	var errs []error
	for _, t := range append([]token{s.token}, s.args...) {
		if p := placeholder(t.text); p != "" {
			errs = append(errs, s.misplaced(t, "placeholder %s was not replaced", p))
		} else if t.text == "" {
			errs = append(errs, s.misplaced(t, "a word is empty; is an environment variable not set?"))
		}
	}
	for _, o := range s.block {
		errs = append(errs, o.words())
	}
	return errors.Join(errs...)
}

func (s statement) misplaced(t token, format string, args ...any) error {
	e := &Error{File: t.file, Line: t.line, Directive: s.directive, Err: reason(format, args...)}
	if placeholder(e.Directive) != "" {
		e.Directive = ""
	}
	return e
}
