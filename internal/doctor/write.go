package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Write prints the report as text: facts, then findings.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "%s: %s\n", f.View, f.What)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n%s %s (%s)\n", strings.ToUpper(string(f.Severity)), f.ID, f.View)
		fmt.Fprintf(&b, "  what  %s\n  why   %s\n  do    %s\n", f.What, f.Why, f.Do)
	}
	if len(r.Unexamined) > 0 {
		b.WriteString("\n")
	}
	for _, u := range r.Unexamined {
		fmt.Fprintf(&b, "not examined: %s\n", u)
	}
	fmt.Fprintf(&b, "\n%s\n", r.Summary())
	_, err := io.WriteString(w, b.String())
	return err
}

// Summary returns the number of findings by severity.
func (r *Report) Summary() string {
	counts := make(map[Severity]int)
	for _, f := range r.Findings {
		counts[f.Severity]++
	}
	var parts []string
	for _, s := range []Severity{Fault, Warning, Note} {
		switch n := counts[s]; n {
		case 0:
		case 1:
			parts = append(parts, "1 "+string(s))
		default:
			parts = append(parts, fmt.Sprintf("%d %ss", n, s))
		}
	}
	if len(parts) == 0 {
		return "no problem found"
	}
	return strings.Join(parts, ", ")
}
