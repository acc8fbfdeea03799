package doctor

import (
	"cmp"
	"slices"
	"sync"
)

// Severity is the severity of a finding.
type Severity string

// The severities. A Fault loses queries. A Warning costs time, loses some queries,
// or causes trouble later. A Note needs no action.
const (
	Fault   Severity = "fault"
	Warning Severity = "warning"
	Note    Severity = "note"
)

func (s Severity) rank() int { return slices.Index([]Severity{Fault, Warning, Note}, s) }

// Finding is one problem.
type Finding struct {
	ID       string   `json:"id"` // one of Kinds
	Severity Severity `json:"severity"`
	View     string   `json:"view"` // "node", or the pod as in Config.Pods
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Do       string   `json:"do"`
}

// Fact is an observation that is neither good nor bad.
type Fact struct {
	View string `json:"view"`
	What string `json:"what"`
}

// Report is the result of an examination.
type Report struct {
	Facts    []Fact    `json:"facts"`
	Findings []Finding `json:"findings"`
	// Unexamined lists what could not be examined, and why.
	Unexamined []string `json:"unexamined"`
}

// Worst returns the highest severity in the report, or "" without findings.
func (r *Report) Worst() Severity {
	if len(r.Findings) == 0 {
		return ""
	}
	return slices.MinFunc(r.Findings, func(a, b Finding) int { return a.Severity.rank() - b.Severity.rank() }).Severity
}

// notes collects a Report from several goroutines.
type notes struct {
	mu     sync.Mutex
	report Report
	views  []string // in the order of the report
}

// find adds a finding of kind id. what is the evidence.
func (n *notes) find(view, id, what string) { n.findAs(view, id, "", what, "") }

// findAs is find with its own severity and advice. If one is empty, the kind's
// applies.
func (n *notes) findAs(view, id string, s Severity, what, do string) {
	k := kindOf(id)
	f := Finding{ID: id, Severity: cmp.Or(s, k.Severity), View: view, What: what, Why: k.Why, Do: cmp.Or(do, k.Do)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Findings = append(n.report.Findings, f)
}

func (n *notes) fact(view, what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Facts = append(n.report.Facts, Fact{view, what})
}

// unexamined records what could not be examined.
func (n *notes) unexamined(what string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.report.Unexamined = append(n.report.Unexamined, what)
}

// has reports whether there is a finding of kind id already.
func (n *notes) has(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.report.Findings, func(f Finding) bool { return f.ID == id })
}

// sorted returns the report: the node first, the highest severity first.
func (n *notes) sorted() *Report {
	n.mu.Lock()
	defer n.mu.Unlock()
	place := func(view string) int { return slices.Index(n.views, view) }
	slices.SortStableFunc(n.report.Facts, func(a, b Fact) int {
		return cmp.Or(place(a.View)-place(b.View), cmp.Compare(a.What, b.What))
	})
	slices.SortStableFunc(n.report.Findings, func(a, b Finding) int {
		return cmp.Or(a.Severity.rank()-b.Severity.rank(), place(a.View)-place(b.View), cmp.Compare(a.ID, b.ID), cmp.Compare(a.What, b.What))
	})
	n.report.Findings = slices.Compact(n.report.Findings)
	n.report.Facts = slices.Compact(n.report.Facts)
	slices.Sort(n.report.Unexamined)
	n.report.Unexamined = slices.Compact(n.report.Unexamined)
	if n.report.Facts == nil {
		n.report.Facts = []Fact{} // JSON: a list
	}
	if n.report.Findings == nil {
		n.report.Findings = []Finding{}
	}
	if n.report.Unexamined == nil {
		n.report.Unexamined = []string{}
	}
	return &n.report
}
