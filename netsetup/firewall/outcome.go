package firewall

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
)

// outcome is what a chain does with a packet.
type outcome int

const (
	undecided outcome = iota
	accepts
	drops // or rejects
)

// walk follows a packet that matches no condition through a base chain and the
// chains that it jumps to.
type walk struct {
	rules   func(chain string) ([]nft.DumpedRule, error)
	visited []string // besides the base chain
	excepts bool     // a rule with a condition may save some packets: see mayPass
}

// chain also returns the index of the rule that decides; len(rules) if none
// does.
func (w *walk) chain(rules []nft.DumpedRule) (outcome, int, error) {
	for i, r := range rules {
		v, ok, err := unconditional(r)
		if err != nil {
			return undecided, i, err
		}
		if !ok {
			w.excepts = w.excepts || mayPass(r)
			continue
		}
		o, leaves, err := w.verdict(v)
		if o != undecided || leaves || err != nil {
			return o, i, err
		}
	}
	return undecided, len(rules), nil
}

// verdict executes a verdict. leaves: the packet skips the rest of the chain.
func (w *walk) verdict(v expr.Verdict) (o outcome, leaves bool, err error) {
	switch v.Kind {
	case expr.VerdictAccept, expr.VerdictQueue, expr.VerdictStolen:
		return accepts, true, nil
	case expr.VerdictDrop:
		return drops, true, nil
	case expr.VerdictReturn:
		return undecided, true, nil
	case expr.VerdictJump, expr.VerdictGoto:
		o, err = w.jump(v.Chain)
		return o, v.Kind == expr.VerdictGoto, err
	}
	return undecided, false, nil
}

// jump runs a chain only once: a chain that decided nothing the first time decides
// nothing the second time.
func (w *walk) jump(chain string) (outcome, error) {
	if slices.Contains(w.visited, chain) {
		return undecided, nil
	}
	w.visited = append(w.visited, chain)
	rules, err := w.rules(chain)
	if err != nil {
		return undecided, err
	}
	o, _, err := w.chain(rules)
	return o, err
}

// unconditional returns what a rule does with every packet. ok is false for a
// rule with a condition; an unknown expression counts as one.
func unconditional(r nft.DumpedRule) (v expr.Verdict, ok bool, err error) {
	v.Kind = expr.VerdictContinue
	for _, e := range r.Exprs {
		switch e.Name {
		case "counter", "log":
		case "match": // of iptables; a comment always matches
			if nft.CString(nested(e.Data, attrMatchName)) != "comment" {
				return v, false, nil
			}
		case "reject":
			v.Kind = expr.VerdictDrop
		case "target": // of iptables
			if nft.CString(nested(e.Data, attrMatchName)) == "REJECT" {
				v.Kind = expr.VerdictDrop
			}
		case "immediate":
			if !isVerdictRegister(e.Data) {
				return v, false, nil
			}
			if err := expr.Unmarshal(unix.NFPROTO_INET, e.Data, &v); err != nil {
				return v, false, err
			}
		default:
			return v, false, nil
		}
	}
	return v, true, nil
}

// isVerdictRegister reports whether an immediate expression sets the verdict.
func isVerdictRegister(data []byte) bool {
	return slices.Equal(nested(data, unix.NFTA_IMMEDIATE_DREG), verdictRegister)
}

// nested returns an attribute in an expression's data; nil if it is missing.
func nested(data []byte, want uint16) []byte { return nft.AttributeAfter(data, 0, want) }

// Of NFTA_MATCH_… and NFTA_TARGET_…, which have the same numbers.
const (
	attrMatchName = 1
	attrMatchInfo = 3
)
