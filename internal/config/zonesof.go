package config

import "slices"

// ZonesOf returns the zones of the server blocks of CoreDNS's Corefile and the FROM of each
// forward: each once, fully qualified, lower case, in the order of the file. It does not
// check directives. It leaves out zones of other transports than plain DNS.
func ZonesOf(name, text string, src Source) ([]string, error) {
	e := expander{Source: src, snippets: make(map[string][]token), files: []string{name}}
	if err := e.expandText(name, text, 0); err != nil {
		return nil, err
	}
	g := grouper{tokens: e.out, getenv: src.getenv, warnings: new([]error)}
	groups, err := g.serverBlocks()
	if err != nil {
		return nil, err
	}
	var names []string
	add := func(key token) {
		zones, err := parseKey(key)
		for _, z := range zones {
			if err == nil && !slices.Contains(names, z.Name) {
				names = append(names, z.Name)
			}
		}
	}
	for _, group := range groups {
		for _, key := range group.keys {
			add(key)
		}
		for _, s := range group.statements {
			if s.text == "forward" && len(s.args) > 1 {
				add(s.args[0])
			}
		}
	}
	return names, nil
}
