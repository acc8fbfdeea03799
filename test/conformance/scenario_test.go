package conformance

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// scenario is a file of testdata.
type scenario struct {
	corefile  string
	args      []string                     // flags of the daemon, besides -conf
	upstreams map[string]map[string][]rule // by address, by state
	steps     []step
}

// line is a line of a file, split into words.
type line struct {
	file   string
	number int
	words  []string
}

func (l line) String() string {
	return fmt.Sprintf("%s:%d: %s", l.file, l.number, strings.Join(l.words, " "))
}

// rest is the text after the first word.
func (l line) rest() string { return strings.Join(l.words[1:], " ") }

// group is a line and the lines indented below it.
type group struct {
	head line
	body []line
}

// readScenario reads a file. A mistake in it fails the test.
func readScenario(t *testing.T, path string) scenario {
	t.Helper()
	ar, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := scenario{upstreams: map[string]map[string][]rule{}}
	for _, f := range ar.Files {
		name, text := strings.Fields(f.Name), string(f.Data)
		switch name[0] {
		case "Corefile":
			s.corefile = text
		case "upstream":
			s.addUpstream(t, path+" "+f.Name, name[1:], text)
		case "steps":
			s.steps = readSteps(t, path+" steps", text)
		default:
			t.Fatalf("%s: unknown section %q", path, f.Name)
		}
	}
	if s.corefile == "" || len(s.steps) == 0 {
		t.Fatalf("%s needs a Corefile and steps", path)
	}
	return s
}

func (s *scenario) addUpstream(t *testing.T, path string, name []string, text string) {
	t.Helper()
	addr, err := netip.ParseAddr(name[0])
	if err != nil {
		t.Fatalf("%s: upstream %s: %v", path, name[0], err)
	}
	state := ""
	if len(name) > 1 {
		state = name[1]
	}
	if s.upstreams[addr.String()] == nil {
		s.upstreams[addr.String()] = map[string][]rule{}
	}
	s.upstreams[addr.String()][state] = readRules(t, path, text)
}

// groups splits a section into lines with their indented lines. # starts a
// comment.
func groups(t *testing.T, path, text string) []group {
	t.Helper()
	var list []group
	for i, s := range strings.Split(text, "\n") {
		s, _, _ = strings.Cut(s, "#")
		words := strings.Fields(s)
		if len(words) == 0 {
			continue
		}
		l := line{path, i + 1, words}
		switch indented := s[0] == ' ' || s[0] == '\t'; {
		case !indented:
			list = append(list, group{head: l})
		case len(list) == 0:
			t.Fatalf("%v: indented, but no line before it", l)
		default:
			list[len(list)-1].body = append(list[len(list)-1].body, l)
		}
	}
	return list
}
