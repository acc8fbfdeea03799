package firewall

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/nft"
)

var verdictRegister = []byte{0, 0, 0, unix.NFT_REG_VERDICT}

// mayPass reports whether a rule with a condition may accept what pods send, or let it
// skip the rule that drops. It assumes so of what it does not know, but not of rules
// for lo or for established connections.
func mayPass(r nft.DumpedRule) bool {
	passes := false
	for i, e := range r.Exprs {
		switch e.Name {
		case "reject":
			return false
		case "match", "cmp":
			if isEstablishedMatch(e) || isForLo(r.Exprs[:i+1]) || isForEstablished(r.Exprs[:i+1]) {
				return false
			}
		case "immediate":
			passes = passes || isVerdictRegister(e.Data) && isPass(e.Data)
		case "lookup": // in a verdict map
			passes = passes || bytes.Equal(nested(e.Data, unix.NFTA_LOOKUP_DREG), verdictRegister)
		case "target": // of iptables
			name := nft.CString(nested(e.Data, attrMatchName))
			passes = passes || !slices.Contains([]string{"REJECT", "LOG", "NFLOG"}, name)
		case "queue":
			passes = true
		}
	}
	return passes
}

// isPass reports whether an immediate verdict is neither drop nor continue.
func isPass(data []byte) bool {
	var v expr.Verdict
	err := expr.Unmarshal(unix.NFPROTO_INET, data, &v)
	return err != nil || v.Kind != expr.VerdictDrop && v.Kind != expr.VerdictContinue
}

// isForLo reports whether exprs ends with iifname "lo".
func isForLo(exprs []nft.DumpedExpr) bool {
	var meta expr.Meta
	var cmp expr.Cmp
	n := len(exprs)
	return n >= 2 && exprs[n-2].Name == "meta" && decode(exprs[n-2], &meta) && decode(exprs[n-1], &cmp) &&
		meta.Key == expr.MetaKeyIIFNAME && cmp.Op == expr.CmpOpEq && bytes.HasPrefix(cmp.Data, []byte("lo\x00"))
}

// Of the kernel's enum nf_ct_state_bit: states of packets that open no connection.
const (
	stateInvalid     = 1
	stateEstablished = 2
	stateRelated     = 4
	oldStates        = stateInvalid | stateEstablished | stateRelated
)

// isForEstablished reports whether exprs ends with ct state and some of oldStates.
func isForEstablished(exprs []nft.DumpedExpr) bool {
	var ct expr.Ct
	var mask expr.Bitwise
	var cmp expr.Cmp
	n := len(exprs)
	return n >= 3 && exprs[n-3].Name == "ct" && exprs[n-2].Name == "bitwise" && exprs[n-1].Name == "cmp" &&
		decode(exprs[n-3], &ct) && decode(exprs[n-2], &mask) && decode(exprs[n-1], &cmp) &&
		ct.Key == expr.CtKeySTATE && cmp.Op == expr.CmpOpNeq && isZero(cmp.Data) && isZero(mask.Xor) &&
		len(mask.Mask) == 4 && binary.NativeEndian.Uint32(mask.Mask)&^oldStates == 0
}

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

func decode(e nft.DumpedExpr, into expr.Any) bool {
	return expr.Unmarshal(unix.NFPROTO_INET, e.Data, into) == nil
}

// isEstablishedMatch is isForEstablished for iptables: struct xt_conntrack_mtinfo3 of
// include/uapi/linux/netfilter/xt_conntrack.h.
func isEstablishedMatch(e nft.DumpedExpr) bool {
	const flags, inverted, states, end = 146, 148, 150, 152
	const byState = 1 // XT_CONNTRACK_STATE
	info := nested(e.Data, attrMatchInfo)
	if e.Name != "match" || nft.CString(nested(e.Data, attrMatchName)) != "conntrack" || len(info) < end {
		return false
	}
	at := func(offset int) uint16 { return binary.NativeEndian.Uint16(info[offset:]) }
	return at(flags)&byState != 0 && at(inverted)&byState == 0 && at(states)&^oldStates == 0
}
