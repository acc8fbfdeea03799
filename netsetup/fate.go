package netsetup

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// fate is what becomes of a packet.
type fate int

const (
	undecided fate = iota
	passes         // the chain lets it go on
	drops          // dropped or rejected
)

// walk follows a packet that meets no rule's condition through a base chain and
// those that it reaches without one.
type walk struct {
	chain   *foreignChain
	rules   func(chain string) ([]dumpedRule, error)
	visited []string // besides the base chain
}

// through returns also the index of the rule that decides; len(rules) where
// none does.
func (w *walk) through(rules []dumpedRule) (fate, int, error) {
	for i, r := range rules {
		v, ok, err := r.unconditional()
		if err != nil {
			return undecided, i, err
		}
		if !ok {
			continue
		}
		f, leaves, err := w.follow(v)
		if f != undecided || leaves || err != nil {
			return f, i, err
		}
	}
	return undecided, len(rules), nil
}

// follow does what the verdict says. leaves: the rest of the chain is not run.
func (w *walk) follow(v expr.Verdict) (f fate, leaves bool, err error) {
	switch v.Kind {
	case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen:
		return passes, true, nil
	case expr.VerdictDrop:
		return drops, true, nil
	case expr.VerdictReturn:
		return undecided, true, nil
	case expr.VerdictJump, expr.VerdictGoto:
		f, err = w.into(v.Chain)
		return f, v.Kind == expr.VerdictGoto, err
	}
	return undecided, false, nil
}

// into runs a chain once: what it decided nothing about the first time it
// decides nothing about the second time.
func (w *walk) into(chain string) (fate, error) {
	if slices.Contains(w.visited, chain) {
		return undecided, nil
	}
	w.visited = append(w.visited, chain)
	rules, err := w.rules(chain)
	if err != nil {
		return undecided, err
	}
	f, _, err := w.through(rules)
	return f, err
}

// unconditional returns what a rule does with every packet; ok is false for a
// rule that has a condition, and for what we do not know and so must take for
// one.
func (r dumpedRule) unconditional() (v expr.Verdict, ok bool, err error) {
	v.Kind = expr.VerdictContinue
	for _, e := range r.exprs {
		switch e.name {
		case "counter", "log":
		case "match": // of iptables; a comment matches always
			if cString(nested(e.data, nftaMatchName)) != "comment" {
				return v, false, nil
			}
		case "reject":
			v.Kind = expr.VerdictDrop
		case "target": // of iptables
			if cString(nested(e.data, nftaMatchName)) == "REJECT" {
				v.Kind = expr.VerdictDrop
			}
		case "immediate":
			if !isVerdictRegister(e.data) {
				return v, false, nil
			}
			if err := expr.Unmarshal(unix.NFPROTO_INET, e.data, &v); err != nil {
				return v, false, err
			}
		default:
			return v, false, nil
		}
	}
	return v, true, nil
}

// isVerdictRegister says whether an immediate expression sets the verdict.
func isVerdictRegister(data []byte) bool {
	reg := nested(data, unix.NFTA_IMMEDIATE_DREG)
	return slices.Equal(reg, []byte{0, 0, 0, unix.NFT_REG_VERDICT})
}

// nested finds an attribute in an expression's data; nil where it is missing.
func nested(data []byte, want uint16) []byte { return attributeAfter(data, 0, want) }

// Of NFTA_MATCH_… and NFTA_TARGET_…, which have the same numbers.
const (
	nftaMatchName = 1
	nftaMatchInfo = 3
)
