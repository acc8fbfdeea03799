package config

import "strings"

// serverBlock is a server block whose directives are not parsed yet.
type serverBlock struct {
	keys       []token // at least one
	statements []statement
}

// statement is a directive or an option: a name, arguments on the same line, and an
// optional block of options.
type statement struct {
	token
	directive string // its directive: itself, or that of the option
	option    bool   // not a directive
	args      []token
	braced    bool // has a block, which may be empty
	block     []statement
	warnings  *[]error // of the Corefile
}

// maxBlockDepth limits nested blocks. Directives need two.
const maxBlockDepth = 8

// grouper turns tokens into server blocks. Its grammar is that of CoreDNS's
// Caddyfile, except that it refuses misplaced braces.
type grouper struct {
	tokens []token // the remaining tokens
	getenv func(string) string

	warnings *[]error
}

func (g *grouper) done() bool { return len(g.tokens) == 0 }

func (g *grouper) next() token {
	t := g.tokens[0]
	g.tokens = g.tokens[1:]
	return t
}

// at reports whether the next token is text.
func (g *grouper) at(text string) bool { return !g.done() && g.tokens[0].text == text }

func (g *grouper) serverBlocks() ([]serverBlock, error) {
	var blocks []serverBlock
	for !g.done() {
		keys, err := g.keys()
		if err != nil {
			return nil, err
		}
		b := serverBlock{keys: keys}
		if b.statements, err = g.body(); err != nil {
			return nil, err
		}
		blocks = append(blocks, b)
	}
	return blocks, nil
}

// keys reads the zones before a block. They end at the brace or at the end of a line
// without a final comma.
func (g *grouper) keys() ([]token, error) {
	var keys []token
	first, comma := g.tokens[0], false
	for read := 0; !g.done() && !g.at("{"); read++ {
		t := g.tokens[0]
		if t.newLine && read > 0 && !comma {
			break
		}
		if t.text == "}" {
			return nil, t.errorf("unexpected }: no block is open")
		}
		g.next()
		text := expandEnv(t.text, g.getenv)
		if text == "" { // an empty word does not end the wait for a zone after a comma
			continue
		}
		if t.text, comma = strings.CutSuffix(text, ","); t.text == "" {
			return nil, t.errorf("a zone is missing before the comma; write the comma directly after the zone")
		}
		if zone, glued := strings.CutSuffix(t.text, "{"); glued {
			return nil, t.errorf("%q: write a space before {, as in %q", t.text, zone+" {")
		}
		keys = append(keys, t)
	}
	switch {
	case comma:
		return nil, first.errorf("a zone is missing after the last comma")
	case len(keys) == 0:
		return nil, first.errorf("a server block must start with a zone, such as .:53")
	}
	return keys, nil
}

// body reads a block in braces or, without braces, the rest of the file.
func (g *grouper) body() ([]statement, error) {
	if g.at("{") {
		return g.braces("", 1)
	}
	var statements []statement
	for !g.done() {
		if g.at("}") {
			return nil, g.next().errorf("unexpected }: no block is open")
		}
		s, err := g.statement("", 0)
		if err != nil {
			return nil, err
		}
		statements = append(statements, s)
	}
	return statements, nil
}

// braces reads from { to its }.
func (g *grouper) braces(directive string, depth int) ([]statement, error) {
	open := g.next()
	if depth > maxBlockDepth {
		return nil, open.errorf("blocks are nested more than %d deep", maxBlockDepth)
	}
	var statements []statement
	for !g.done() {
		if g.at("}") {
			g.next()
			return statements, nil
		}
		s, err := g.statement(directive, depth)
		if err != nil {
			return nil, err
		}
		statements = append(statements, s)
	}
	return nil, open.errorf("the block that starts here is not closed: a } is missing")
}

func (g *grouper) statement(directive string, depth int) (statement, error) {
	s := statement{token: g.next(), directive: directive, option: directive != "", warnings: g.warnings}
	if s.text == "{" {
		return s, s.token.errorf("unexpected {: write it at the end of the line that it belongs to")
	}
	s.text = expandEnv(s.text, g.getenv)
	if !s.option {
		s.directive = s.text
	}
	for !g.done() && !g.tokens[0].newLine {
		if g.at("}") {
			return s, g.next().errorf("unexpected }: write it on a line of its own")
		}
		if g.at("{") {
			return g.optionBlock(s, depth)
		}
		arg := g.next()
		arg.text = expandEnv(arg.text, g.getenv)
		s.args = append(s.args, arg)
	}
	return s, nil
}

func (g *grouper) optionBlock(s statement, depth int) (statement, error) {
	var err error
	s.braced = true
	if s.block, err = g.braces(s.directive, depth+1); err != nil {
		return s, err
	}
	if !g.done() && !g.tokens[0].newLine {
		return s, g.tokens[0].errorf("unexpected %q after }", g.tokens[0].text)
	}
	return s, nil
}
