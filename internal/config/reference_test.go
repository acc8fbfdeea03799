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

A Corefile is a list of server blocks: the zones that a block answers for, and
directives that say how.

    cluster.local in-addr.arpa:53 {
        cache 30
        forward . 10.96.0.10
    }

- A query goes to the block with the longest zone that its name is in. A zone is
  a name, ` + "`.`" + ` for all, a network such as 10.0.0.0/8 for its reverse zone, and
  may have a port.
- ` + "`{$NAME}`" + ` and ` + "`{%NAME%}`" + ` are environment variables. ` + "`#`" + ` begins a comment.
- ` + "`(NAME) { … }`" + ` is a snippet; ` + "`import NAME`" + ` puts it in, ` + "`import FILE`" + ` a file, whose
  path is relative to the Corefile's folder.
- With ` + "`-basecorefile`" + `, node-cache's placeholders are filled in: ` + "`__PILLAR__…`" + `,
  ` + "`__PROMETHEUS__ENDPOINT__`" + `.
- The order of directives in a block does not matter; they act in the order of
  this page, see [what follows from it](directives.md).
- A mistake is an error ` + "`FILE:LINE: DIRECTIVE: reason`" + `; what CoreDNS takes and does not
  use is taken, too, with a warning. ` + "`nodens check FILE`" + ` prints what a Corefile
  comes to, with all defaults.

In the forms, CAPITALS are for you to fill in, ` + "`[ ]`" + ` may be left out, ` + "`|`" + ` is or, ` + "`…`" + `
may be repeated. Options stand below each other in the directive's braces.
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
			b.WriteString("\nA block may have several.\n")
		}
		if d.Differs != "" {
			fmt.Fprintf(&b, "\nOther than in CoreDNS: %s\n", d.Differs)
		}
	}
	b.WriteString("\n## Directives of CoreDNS that are refused\n\n| directive | why, and what to do |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(refused())) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, refused()[name])
	}
	return b.String()
}

// TestReference holds docs/corefile.md to say what the directives are.
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
		t.Error(path + " is not what the directives are; go test ./internal/config -run TestReference -update writes it anew")
	}
}
