package config

// serverBlock is a server block before its words are given a meaning.
type serverBlock struct {
	keys       []token // at least one
	statements []statement
}

// statement is a directive or an option of one: a name, arguments on the same
// line, and perhaps a block of options.
type statement struct {
	token
	directive string // the directive that the statement is or belongs to
	option    bool   // it belongs to one
	args      []token
	braced    bool // a block follows, perhaps an empty one
	block     []statement
	warnings  *[]error // of the Corefile
}

// maxBlockDepth bounds blocks in blocks. Nothing that we know of goes deeper
// than two.
const maxBlockDepth = 8

// grouper turns tokens into server blocks. Its grammar is that of the Caddyfile
// as CoreDNS reads it, made strict where that one swallows a misplaced brace.
type grouper struct {
	tokens []token // what is left
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

// keys reads the zones in front of a block. They end with the line or with the
// brace; after a comma they go on.
func (g *grouper) keys() ([]token, error) {
	var keys []token
	first, comma := g.tokens[0], false
	for read := 0; !g.done() && !g.at("{"); read++ {
		t := g.tokens[0]
		if t.newLine && read > 0 && !comma {
			break
		}
		if t.text == "}" {
			return nil, t.errorf("unexpected }: no block is open here")
		}
		g.next()
		text := expandEnv(t.text, g.getenv)
		if comma = len(text) > 0 && text[len(text)-1] == ','; comma {
			text = text[:len(text)-1]
			if text == "" {
				return nil, t.errorf("a zone is missing before the comma; it has to follow without a space")
			}
		}
		if text != "" {
			t.text = text
			keys = append(keys, t)
		}
	}
	switch {
	case comma:
		return nil, first.errorf("a zone is missing after the last comma")
	case len(keys) == 0:
		return nil, first.errorf("a server block needs a zone in front, such as .:53")
	}
	return keys, nil
}

// body reads a block in braces, or without braces all the rest of the file.
func (g *grouper) body() ([]statement, error) {
	if g.at("{") {
		return g.braces("", 1)
	}
	var statements []statement
	for !g.done() {
		if g.at("}") {
			return nil, g.next().errorf("unexpected }: no block is open here")
		}
		s, err := g.statement("", 0)
		if err != nil {
			return nil, err
		}
		statements = append(statements, s)
	}
	return statements, nil
}

// braces reads from { to the } that closes it.
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
	return nil, open.errorf("the block that is opened here is not closed: a } is missing")
}

func (g *grouper) statement(directive string, depth int) (statement, error) {
	s := statement{token: g.next(), directive: directive, option: directive != "", warnings: g.warnings}
	if s.text == "{" {
		return s, s.token.errorf("unexpected {: it has to stand on the line of what it belongs to")
	}
	s.text = expandEnv(s.text, g.getenv)
	if !s.option {
		s.directive = s.text
	}
	for !g.done() && !g.tokens[0].newLine {
		if g.at("}") {
			return s, g.next().errorf("unexpected }: it has to stand on a line of its own")
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
