package config

import (
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// token is one word of a Corefile and where it stands.
type token struct {
	file    string
	line    int
	text    string
	newLine bool // the first word of its line
}

func (t token) errorf(format string, args ...any) error {
	return &Error{File: t.file, Line: t.line, Err: reason(format, args...)}
}

// lex splits text into words. Comments are gone; a quoted string is one word
// without its quotes, and nothing tells it from a bare word afterwards.
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
