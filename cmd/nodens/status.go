package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/nodens-dns/nodens/netsetup"
)

var errNotAsWanted = errors.New("the host is not set up as wanted")

// asWanted leaves out of the judgement what the flags leave to others.
func asWanted(f *flags, s netsetup.Status) bool {
	if !f.setupRules {
		s.Rules.Present, s.Rules.Problem = true, ""
	}
	if f.setupInterface {
		return s.OK()
	}
	return s.Rules.Problem == ""
}

// printStatus prints one line for each thing: what it is and how it is.
func printStatus(w io.Writer, f *flags, s netsetup.Status) {
	link := s.Interface
	if link == "" {
		link = "none"
	}
	fmt.Fprintf(w, "link\t%s%s\n", link, by(s.Generation))
	for _, a := range s.Addresses {
		where := "missing"
		if a.Link != "" {
			where = "on " + a.Link
		}
		fmt.Fprintf(w, "address\t%s %s%s\n", a.Address, where, problem(a.Problem))
	}
	switch {
	case !f.setupRules:
		fmt.Fprintln(w, "rules\tnot wanted")
	case s.Rules.Present:
		fmt.Fprintf(w, "rules\tpresent%s%s\n", by(s.Rules.Generation), problem(s.Rules.Problem))
	default:
		fmt.Fprintf(w, "rules\tmissing%s\n", problem(s.Rules.Problem))
	}
	for _, c := range s.ForeignDrops {
		fmt.Fprintf(w, "note\t%s drops by default: it must let the local addresses pass\n", c)
	}
}

func by(generation string) string {
	if generation == "" {
		return ""
	}
	return " (generation " + generation + ")"
}

func problem(p string) string {
	if p == "" {
		return ""
	}
	return ": " + p
}
