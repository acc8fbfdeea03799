package config

import (
	"errors"
	"fmt"
	"strings"
)

// Error is an error in a Corefile. Parse reports every independent error, joined
// with errors.Join in the order of the file.
type Error struct {
	File      string
	Line      int    // from 1
	Directive string // empty for errors in structure or zones
	Err       error
}

// Error returns "file:line: directive: reason", or "file:line: reason" without a
// directive.
func (e *Error) Error() string {
	const longest = 1000 // bytes; a reason may quote a word of megabytes
	text := e.Err.Error()
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	if e.Directive == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Directive, text)
}

func (e *Error) Unwrap() error { return e.Err }

// flatten returns the errors in nested errors.Join once each: a snippet that is
// imported twice has its error reported once.
func flatten(errs []error) []error {
	var flat []error
	seen := make(map[string]bool)
	var add func(err error)
	add = func(err error) {
		if err == nil {
			return
		}
		var joined interface{ Unwrap() []error }
		if errors.As(err, &joined) {
			for _, e := range joined.Unwrap() {
				add(e)
			}
			return
		}
		if text := err.Error(); !seen[text] {
			seen[text] = true
			flat = append(flat, err)
		}
	}
	for _, err := range errs {
		add(err)
	}
	return flat
}

// Problem is an error or a warning as data. If it is in a Corefile, it has a place.
type Problem struct {
	File      string `json:"file,omitempty"`
	Line      int    `json:"line,omitempty"`
	Directive string `json:"directive,omitempty"`
	Text      string `json:"text"`
}

// Problems returns the errors that err joins. The result is not nil.
func Problems(err error) []Problem {
	all := []Problem{}
	for _, one := range flatten([]error{err}) {
		var at *Error
		if errors.As(one, &at) {
			all = append(all, Problem{at.File, at.Line, at.Directive, at.Err.Error()})
		} else {
			all = append(all, Problem{Text: one.Error()})
		}
	}
	return all
}
