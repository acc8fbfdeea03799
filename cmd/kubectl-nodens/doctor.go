package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/top"
)

func doctorCommand(c *cluster) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine DNS on each node and merge the findings",
		Long: `Run nodens doctor on each node, and print each finding once, with its nodes.
Stub domains of CoreDNS's Corefile that nodens bypasses are a finding of the cluster.
-o wide also prints what could not be examined on each node.

Exit status: 0 no fault or warning; 1 a fault or a warning; 2 an error, or no fault or
warning but not everything could be examined.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.doctor(cmd.Context(), f) },
	}
	f.add(cmd)
	return cmd
}

// report is the JSON of nodens doctor. Package doctor itself needs Linux.
type report struct {
	Findings   []finding `json:"findings"`
	Unexamined []string  `json:"unexamined"`
}

type finding struct {
	ID       string `json:"id"`
	Severity string `json:"severity"` // note, warning or fault
	What     string `json:"what"`
	Why      string `json:"why"`
	Do       string `json:"do"`
}

// mergedFinding is a finding of several nodes.
type mergedFinding struct {
	ID       string        `json:"id"`
	Severity string        `json:"severity"`
	Why      string        `json:"why"`
	Do       string        `json:"do"`
	Seen     []observation `json:"seen"`
}

// observation is the text of a finding, which may differ between nodes.
type observation struct {
	What  string   `json:"what"`
	Nodes []string `json:"nodes"`
}

// wholeCluster stands for the nodes of an observation of the cluster.
var wholeCluster = []string{"cluster"}

// diagnosis is the merged report.
type diagnosis struct {
	Nodes      int             `json:"nodes"`
	Findings   []mergedFinding `json:"findings"`
	Unexamined []observation   `json:"unexamined"`
	Errors     []observation   `json:"errors"`
}

func (c *cluster) doctor(ctx context.Context, f format) error {
	pods, err := c.pods(ctx)
	if err != nil {
		return err
	}
	d := diagnose(each(ctx, c, pods, func(ctx context.Context, pod *corev1.Pod) (r report, err error) {
		text, err := c.ask(ctx, pod, askFindings)
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		return r, err
	}))
	c.addStubDomains(ctx, &d, pods)
	slices.SortStableFunc(d.Findings, func(a, b mergedFinding) int { return cmp.Compare(rank(b.Severity), rank(a.Severity)) })
	if f.data() {
		err = f.print(c.out, d)
	} else {
		err = d.write(c.out, f == "wide")
	}
	if status := d.exitStatus(); err == nil && status != 0 {
		return status
	}
	return err
}

// diagnose merges the reports. Findings that differ only in What become one.
func diagnose(answers []answer[report]) diagnosis {
	d := diagnosis{Nodes: len(answers), Findings: []mergedFinding{}, Unexamined: []observation{}, Errors: []observation{}}
	for _, a := range answers {
		if a.Err != nil {
			d.Errors = observe(d.Errors, sentence(a.Err), a.Node)
			continue
		}
		for _, u := range a.Value.Unexamined {
			d.Unexamined = observe(d.Unexamined, u, a.Node)
		}
		for _, f := range a.Value.Findings {
			i := slices.IndexFunc(d.Findings, func(m mergedFinding) bool {
				return m.ID == f.ID && m.Severity == f.Severity && m.Why == f.Why && m.Do == f.Do
			})
			if i < 0 {
				i = len(d.Findings)
				d.Findings = append(d.Findings, mergedFinding{ID: f.ID, Severity: f.Severity, Why: f.Why, Do: f.Do})
			}
			d.Findings[i].Seen = observe(d.Findings[i].Seen, f.What, a.Node)
		}
	}
	return d
}

func observe(all []observation, what, node string) []observation {
	i := slices.IndexFunc(all, func(o observation) bool { return o.What == what })
	switch {
	case i < 0:
		return append(all, observation{what, []string{node}})
	case !slices.Contains(all[i].Nodes, node):
		all[i].Nodes = append(all[i].Nodes, node)
	}
	return all
}

// rank orders severities. An unknown one, of a newer nodens, counts as a fault.
func rank(severity string) int {
	switch strings.ToLower(severity) {
	case "note":
		return 0
	case "warning":
		return 1
	}
	return 2
}

func (d diagnosis) exitStatus() exitStatus {
	switch {
	case len(d.Findings) > 0 && rank(d.Findings[0].Severity) > 0:
		return 1
	case len(d.Errors) > 0 || len(d.Unexamined) > 0:
		return 2
	}
	return 0
}

func (d diagnosis) write(w io.Writer, wide bool) error {
	var b strings.Builder
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "%s %s\n", strings.ToUpper(f.Severity), f.ID)
		for _, s := range f.Seen {
			fmt.Fprintf(&b, "  on    %s\n  what  %s\n", d.nodes(s.Nodes), s.What)
		}
		fmt.Fprintf(&b, "  why   %s\n  do    %s\n\n", f.Why, f.Do)
	}
	for _, e := range d.Errors {
		fmt.Fprintf(&b, "%s: no report: %s\n", d.nodes(e.Nodes), e.What)
	}
	hidden := false
	for _, u := range d.Unexamined {
		if !wide && !slices.Equal(u.Nodes, wholeCluster) {
			hidden = true
			continue
		}
		fmt.Fprintf(&b, "%s: not examined: %s\n", d.nodes(u.Nodes), u.What)
	}
	b.WriteString(count(d.Nodes, "node") + ", " + count(len(d.Findings), "finding"))
	if n := len(d.Unexamined); n > 0 {
		b.WriteString(", " + count(n, "thing") + " could not be examined")
		if hidden {
			b.WriteString(" (-o wide lists them)")
		}
	}
	_, err := fmt.Fprintln(w, top.PrintableLines(b.String()))
	return err
}

// nodes lists nodes for a line of output.
func (d diagnosis) nodes(names []string) string {
	if len(names) == d.Nodes && d.Nodes > 1 {
		return fmt.Sprintf("all %d nodes", d.Nodes)
	}
	return strings.Join(names, ", ")
}
