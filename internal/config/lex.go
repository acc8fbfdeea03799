package config

import (
	"strings"
	"unicode"

	"github.com/coredns/caddy/caddyfile"
)

// token is a word of a Corefile and its place.
type token struct {
	file    string
	line    int
	text    string
	newLine bool // first word of its line
}

func (t token) errorf(format string, args ...any) error {
	return &Error{File: t.file, Line: t.line, Err: reason(format, args...)}
}

// lex splits text into words without comments. A quoted string is one word without
// its quotes.
func lex(file, text string) []token {
	// Reading from memory cannot fail, so the lexer cannot panic.
	d := caddyfile.NewDispenser(file, strings.NewReader(text))
	var tokens []token
	end := 0 // the line on which the last word ended
	for d.Next() {
		t := token{file: file, line: d.Line(), text: d.Val()}
		t.newLine = t.line > end
		end = t.line + strings.Count(t.text, "\n")
		tokens = append(tokens, t)
	}
	return tokens
}

// unclosedQuote returns the line, from 1, of a quote without end, or 0. A quote
// starts at the beginning of a word, and in it only \" is an escape.
func unclosedQuote(text string) int {
	line, start := 1, 0
	word, comment, escaped := false, false, false
	for _, ch := range strings.TrimPrefix(text, "\ufeff") {
		switch {
		case start > 0:
			if ch == '"' && !escaped {
				start = 0
			}
			escaped = ch == '\\' && !escaped
		case comment && ch != '\n' || ch == '\r':
		case unicode.IsSpace(ch):
			word, comment = false, false
		case ch == '#':
			comment = true
		case ch == '"' && !word:
			start = line
		default:
			word = true
		}
		if ch == '\n' {
			line++
		}
	}
	return start
}
