package config

import "errors"

// Parse reads the text of a Corefile. name is the file name in errors. Imports are
// relative to the directory of name. Parse reports all independent errors, up to
// maxErrors: the error is an errors.Join of *Error in the order of the file.
func Parse(name, text string, src Source) (*Config, error) {
	if len(text) > maxFileSize {
		return nil, &Error{File: name, Line: 1, Err: reason("cannot read the Corefile: %v", errTooLarge)}
	}
	e := expander{Source: src, snippets: make(map[string][]token), files: []string{name}}
	if err := e.expandText(name, text, 0); err != nil {
		return nil, err
	}
	g := grouper{tokens: e.out, getenv: src.getenv, warnings: new([]error)}
	groups, err := g.serverBlocks()
	if err != nil {
		return nil, err
	}
	if len(groups) == 0 {
		return nil, &Error{File: name, Line: 1, Err: reason("the Corefile has no server block")}
	}
	c, err := build(&Config{File: name, Corefile: text, Files: e.files}, groups)
	if err != nil {
		return nil, err
	}
	c.Warnings = append(*g.warnings, c.withoutSource()...)
	return c, nil
}

// maxErrors limits the directives of a block, and the blocks, that Parse reports as
// wrong: the file may be something other than a Corefile.
const maxErrors = 100

// build adds the groups to c as blocks.
func build(c *Config, groups []serverBlock) (*Config, error) {
	var errs []error
	served := make(servedZones)
	for _, group := range groups {
		b, err := buildBlock(group, served)
		if err != nil {
			errs = append(errs, err)
		}
		if len(errs) == maxErrors {
			return nil, errors.Join(flatten(errs)...)
		}
		c.Blocks = append(c.Blocks, b)
	}
	errs = append(errs, checkRedirects(c.Blocks), checkSearchCuts(c.Blocks), checkFastpaths(c.Blocks))
	if flat := flatten(errs); len(flat) > 0 {
		return nil, errors.Join(flat...)
	}
	return c, nil
}

// buildBlock adds the zones of the block to served, unless a directive is wrong,
// because that directive may be bind.
func buildBlock(group serverBlock, served servedZones) (*Block, error) {
	first := group.keys[0]
	b := &Block{File: first.file, Line: first.line}
	var errs, inner []error
	for _, key := range group.keys {
		zones, err := parseKey(key)
		errs = append(errs, err)
		b.Zones = append(b.Zones, zones...)
	}
	if len(group.statements) == 0 {
		errs = append(errs, first.errorf("the server block of %s has no directives", first.text))
	}
	seen := make(map[string]token)
	for _, s := range group.statements {
		if err := parseStatement(b, s, seen); err != nil {
			inner = append(inner, err)
		}
		if len(inner) == maxErrors {
			inner = append(inner, first.errorf("%d directives of this block are wrong; the rest of the block is not checked", maxErrors))
			break
		}
	}
	if len(inner) == 0 {
		errs = append(errs, served.add(b, 0)...)
	}
	return b, errors.Join(append(errs, inner...)...)
}

func parseStatement(b *Block, s statement, seen map[string]token) error {
	if err := s.words(); err != nil {
		return err
	}
	d, _ := directive(s.text)
	if before, ok := seen[s.text]; ok && d.last {
		s.warnf("given twice in this block, first %s; the last one applies", before.seenFrom(s.token))
	} else if ok && !d.repeats {
		return s.errorf("given twice in this block, first %s", before.seenFrom(s.token))
	}
	seen[s.text] = s.token
	return parseDirective(b, s)
}
