package config

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds on one Corefile with its imports. A file that imports itself ends in an
// error before it uses up the node's memory.
const (
	maxTokens      = 200_000
	maxImports     = 10_000
	maxImportDepth = 32
)

// expander replaces import lines by the imported text and removes snippet
// definitions.
type expander struct {
	Source
	snippets map[string][]token
	imports  int
	files    []string // read so far, each once
	braces   int      // open before the next token
	out      []token
}

// expandText appends the words of a file to e.out.
func (e *expander) expandText(file, text string, depth int) error {
	if line := unclosedQuote(text); line > 0 {
		return token{file: file, line: line}.errorf("the quote that starts here is not closed: a \" is missing")
	}
	return e.expand(lex(file, text), depth)
}

// expand appends tokens to e.out. depth is the number of nested imports.
func (e *expander) expand(tokens []token, depth int) error {
	for len(tokens) > 0 {
		t := tokens[0]
		n := 1
		var err error
		switch {
		case t.text == "import" && (t.newLine || e.afterBrace()):
			n, err = e.importLine(tokens, depth)
		case e.startsSnippet(tokens):
			n, err = e.defineSnippet(tokens)
		default:
			err = e.append(t)
		}
		if err != nil {
			return err
		}
		tokens = tokens[n:]
	}
	return nil
}

// afterBrace reports whether the next token is the first of a block.
func (e *expander) afterBrace() bool {
	return len(e.out) > 0 && e.out[len(e.out)-1].text == "{"
}

func (e *expander) append(t token) error {
	switch t.text {
	case "{":
		e.braces++
	case "}":
		e.braces--
	}
	if len(e.out) >= maxTokens {
		return t.errorf("the Corefile and its imports have more than %d words", maxTokens)
	}
	e.out = append(e.out, t)
	return nil
}

// startsSnippet reports whether tokens start with a snippet definition, in a place
// where a server block may start.
func (e *expander) startsSnippet(tokens []token) bool {
	t := tokens[0]
	between := len(e.out) == 0 || e.braces == 0 && e.out[len(e.out)-1].text == "}"
	return between && t.newLine && len(tokens) > 1 && tokens[1].text == "{" &&
		strings.HasPrefix(t.text, "(") && strings.HasSuffix(t.text, ")")
}

// defineSnippet returns the number of tokens of the definition.
func (e *expander) defineSnippet(tokens []token) (int, error) {
	head := tokens[0]
	name := strings.TrimSuffix(strings.TrimPrefix(head.text, "("), ")")
	if name == "" {
		return 0, head.errorf("the snippet has no name: write (NAME) { … }")
	}
	if _, ok := e.snippets[name]; ok {
		return 0, head.errorf("snippet (%s) is defined twice", name)
	}
	open := 0
	for i, t := range tokens {
		switch t.text {
		case "{":
			open++
		case "}":
			open--
		}
		if i > 0 && open == 0 {
			e.snippets[name] = onNewLine(tokens[2:i])
			return i + 1, nil
		}
	}
	return 0, head.errorf("snippet (%s) is not closed: a } is missing", name)
}

// onNewLine returns a copy of tokens that starts a line.
func onNewLine(tokens []token) []token {
	body := append([]token{}, tokens...)
	if len(body) > 0 {
		body[0].newLine = true
	}
	return body
}

// importLine returns the number of tokens of the line.
func (e *expander) importLine(tokens []token, depth int) (int, error) {
	line := tokens[0]
	n := 1
	for n < len(tokens) && !tokens[n].newLine {
		n++
	}
	if n != 2 {
		return 0, importError(line, "got %d arguments, expected the name of a snippet or a file", n-1)
	}
	name := expandEnv(tokens[1].text, e.getenv)
	if p := placeholder(name); p != "" {
		return 0, importError(line, "placeholder %s was not replaced", p)
	}
	if name == "" {
		return 0, importError(line, "the name of the snippet or file is empty")
	}
	if e.imports++; e.imports > maxImports {
		return 0, importError(line, "more than %d imports", maxImports)
	}
	if depth >= maxImportDepth {
		return 0, importError(line, "%q is nested in more than %d imports; does it import itself?", name, maxImportDepth)
	}
	if body, ok := e.snippets[name]; ok {
		return n, e.expand(body, depth+1)
	}
	return n, e.importFiles(line, name, depth)
}

// importFiles reads the files that match pattern, relative to the file that imports
// it. A pattern with a wildcard may match no file.
func (e *expander) importFiles(line token, pattern string, depth int) error {
	if strings.Count(pattern, "*") > 1 || strings.Count(pattern, "?") > 1 || strings.ContainsAny(pattern, "[]") {
		return importError(line, "pattern %q: only one wildcard, * or ?, is allowed", pattern)
	}
	path := pattern
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(line.file), path)
	}
	files := []string{path}
	if strings.ContainsAny(path, "*?") {
		var err error
		if files, err = e.glob(path); err != nil {
			return importError(line, "pattern %q is malformed", pattern)
		}
	}
	for _, file := range files {
		text, err := e.ReadFile(file)
		if err != nil {
			return importError(line, "cannot read %q: %s", file, fileFault(err))
		}
		if !slices.Contains(e.files, file) {
			e.files = append(e.files, file)
		}
		if err := e.expandText(file, string(text), depth+1); err != nil {
			return err
		}
	}
	return nil
}

func importError(line token, format string, args ...any) error {
	return &Error{File: line.file, Line: line.line, Directive: "import", Err: reason(format, args...)}
}

// fileFault returns the reason why a file cannot be read, without its path.
func fileFault(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "no such snippet or file"
	}
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}
