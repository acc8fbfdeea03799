package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

const referenceHead = `# The Corefile

<!-- Made from config.Directives by go test ./internal/config -run TestReference -update. -->

A Corefile is a list of server blocks. The zones of a block are the names that it
answers for. Its directives define how.

    cluster.local in-addr.arpa:53 {
        cache 30
        forward . 10.96.0.10
    }

- A query goes to the block with the longest zone that contains its name. A zone is
  a name, ` + "`.`" + ` for all names, or a network such as 10.0.0.0/8 for its reverse zone.
  It may have a port.
- ` + "`{$NAME}`" + ` and ` + "`{%NAME%}`" + ` are environment variables. ` + "`#`" + ` begins a comment.
- ` + "`(NAME) { … }`" + ` defines a snippet. ` + "`import NAME`" + ` inserts it. ` + "`import FILE`" + ` inserts a
  regular file of at most 4 MiB; its path is relative to the file that imports it.
- With ` + "`-basecorefile`" + `, nodens replaces node-cache's placeholders: ` + "`__PILLAR__…`" + `,
  ` + "`__PROMETHEUS__ENDPOINT__`" + `.
- The order of directives in a block does not matter. They act in the order of
  this page; see [the consequences](directives.md).
- A mistake is an error ` + "`FILE:LINE: DIRECTIVE: reason`" + `. Text that CoreDNS accepts
  and ignores is a warning. ` + "`nodens check FILE`" + ` prints a Corefile with all defaults.

CAPITALS stand for your values, ` + "`[ ]`" + ` is optional, ` + "`|`" + ` means or, ` + "`…`" + ` may be
repeated. Each option goes on a line of its own in the directive's braces.
`

// reference is docs/corefile.md.
func reference() string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, d := range Directives() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", d.Name, d.Summary)
		for i, form := range d.Forms {
			brace := ""
			if i == len(d.Forms)-1 && len(d.Options) > 0 {
				brace = " {"
			}
			fmt.Fprintf(&b, "    %s%s\n", form, brace)
		}
		for _, o := range d.Options {
			fmt.Fprintf(&b, "        %s\n", o)
		}
		if len(d.Options) > 0 {
			b.WriteString("    }\n")
		}
		if d.repeats {
			b.WriteString("\nA block may have more than one.\n")
		}
		if d.own {
			fmt.Fprintf(&b, "\n%s\n", d.Differs)
		} else if d.Differs != "" {
			fmt.Fprintf(&b, "\nDifference from CoreDNS: %s\n", d.Differs)
		}
	}
	b.WriteString("\n## CoreDNS directives that nodens does not have\n\n| directive | what to do instead |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(refused())) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, refused()[name])
	}
	return b.String()
}

// TestReference checks that docs/corefile.md is generated from the directives.
func TestReference(t *testing.T) {
	const path = "../../docs/corefile.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error(path + " is out of date: run go test ./internal/config -run TestReference -update")
	}
}
