package config

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
)

// TestGroupsLikeCaddyfile checks that the library that CoreDNS uses finds the same
// blocks in every Corefile that we accept. The library reads imports from disk.
func TestGroupsLikeCaddyfile(t *testing.T) {
	t.Setenv("NODENS_TEST_HOST", "192.0.2.7")
	for _, file := range archives(t, "testdata/good/*.txtar") {
		_, cases := readArchive(t, file)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Chdir(t.TempDir())
				if err := os.CopyFS(".", c.files); err != nil {
					t.Fatal(err)
				}
				if !compareGroups(t, "Corefile", c.text, Source{Files: c.files, Getenv: os.Getenv}) {
					t.Error("not grouped")
				}
			})
		}
	}
}

// group is a server block as the library returns it: the words of each
// directive in one row, those of repeated directives one after the other.
type group struct {
	Keys       []string
	Directives map[string][]string
}

// compareGroups returns false if text has a structural error. We refuse some
// texts that the library accepts.
func compareGroups(t *testing.T, file string, text string, src Source) bool {
	t.Helper()
	e := expander{Source: src, snippets: make(map[string][]token)}
	if err := e.expandText(file, text, 0); err != nil {
		return false
	}
	g := grouper{tokens: e.out, getenv: src.getenv}
	blocks, err := g.serverBlocks()
	if err != nil {
		return false
	}
	theirs, err := caddyfile.Parse(file, strings.NewReader(text), nil)
	if err != nil {
		t.Fatalf("the library refuses what we accept: %v", err)
	}
	if got, want := ourGroups(blocks), theirGroups(theirs); !reflect.DeepEqual(got, want) {
		t.Errorf("groups differ\ngot:  %q\nwant: %q", got, want)
	}
	return true
}

func ourGroups(blocks []serverBlock) []group {
	var groups []group
	for _, b := range blocks {
		g := group{Directives: make(map[string][]string)}
		for _, key := range b.keys {
			g.Keys = append(g.Keys, key.text)
		}
		for _, s := range b.statements {
			g.Directives[s.text] = append(g.Directives[s.text], row(s)...)
		}
		groups = append(groups, g)
	}
	return groups
}

// row returns the words of s in the order of the file.
func row(s statement) []string {
	words := append([]string{s.text}, s.argTexts()...)
	if s.braced {
		words = append(words, "{")
		for _, o := range s.block {
			words = append(words, row(o)...)
		}
		words = append(words, "}")
	}
	return words
}

func theirGroups(blocks []caddyfile.ServerBlock) []group {
	var groups []group
	for _, b := range blocks {
		g := group{Keys: b.Keys, Directives: make(map[string][]string)}
		for name, tokens := range b.Tokens {
			for _, t := range tokens {
				g.Directives[name] = append(g.Directives[name], t.Text)
			}
		}
		groups = append(groups, g)
	}
	return groups
}
