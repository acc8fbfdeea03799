package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// DumpedRule is a rule as the kernel has it. Package nftables drops expressions that
// it does not know, such as socket. That would hide drift.
type DumpedRule struct {
	Chain    string
	Handle   uint64
	Exprs    []DumpedExpr
	UserData []byte
}

// DumpedExpr is an expression of a DumpedRule.
type DumpedExpr struct {
	Name string
	Data []byte // content of NFTA_EXPR_DATA; may be empty
}

// Rules returns a table's rules in order, of one chain unless chain is empty.
// It returns none if the table or the chain does not exist.
func (c Client) Rules(table TableID, chain string) (rules []DumpedRule, err error) {
	attrs := []netlink.Attribute{String(unix.NFTA_RULE_TABLE, table.Name)}
	if chain != "" {
		attrs = append(attrs, String(unix.NFTA_RULE_CHAIN, chain))
	}
	msg, err := Message(table.Family, unix.NFT_MSG_GETRULE, netlink.Dump, attrs...)
	if err == nil {
		err = c.request(msg, func(r netlink.Message) error {
			parsed, err := parseRule(r.Data)
			rules = append(rules, parsed)
			return err
		})
	}
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", table, err)
	}
	return rules, nil
}

// parseRule parses the payload of an NFT_MSG_NEWRULE message.
func parseRule(data []byte) (DumpedRule, error) {
	r := DumpedRule{
		Chain:    CString(Attribute(data, unix.NFTA_RULE_CHAIN)),
		UserData: Attribute(data, unix.NFTA_RULE_USERDATA),
	}
	if b := Attribute(data, unix.NFTA_RULE_HANDLE); len(b) == 8 {
		r.Handle = binary.BigEndian.Uint64(b)
	}
	elems, err := netlink.UnmarshalAttributes(Attribute(data, unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return r, fmt.Errorf("expressions: %w", err)
	}
	for _, elem := range elems {
		e, err := parseExpr(elem.Data)
		if err != nil {
			return r, err
		}
		r.Exprs = append(r.Exprs, e)
	}
	return r, nil
}

func parseExpr(elem []byte) (e DumpedExpr, err error) {
	attrs, err := netlink.UnmarshalAttributes(elem)
	if err != nil {
		return e, fmt.Errorf("expression: %w", err)
	}
	for _, a := range attrs {
		switch AttrType(a) {
		case unix.NFTA_EXPR_NAME:
			e.Name = CString(a.Data)
		case unix.NFTA_EXPR_DATA:
			e.Data = a.Data
		}
	}
	return e, nil
}

// SameRules compares the kernel's rules with the wanted ones. It ignores counters.
func SameRules(have []DumpedRule, want []Rule) (bool, error) {
	if len(have) != len(want) {
		return false, nil
	}
	for i, w := range want {
		if !bytes.Equal(have[i].UserData, w.UserData()) || len(have[i].Exprs) != len(w.Exprs) {
			return false, nil
		}
		for j, e := range w.Exprs {
			if same, err := have[i].Exprs[j].is(e); !same {
				return false, err
			}
		}
	}
	return true, nil
}

// is compares with an expression as package nftables encodes it.
func (e DumpedExpr) is(want expr.Any) (bool, error) {
	if v, ok := want.(*expr.Verdict); ok {
		return e.isVerdict(v)
	}
	b, err := expr.Marshal(unix.NFPROTO_INET, want)
	if err != nil {
		return false, fmt.Errorf("encode expression: %w", err)
	}
	w, err := parseExpr(b)
	if err != nil || w.Name != e.Name {
		return false, err
	}
	if w.Name == "counter" { // changed counters are no drift
		return true, nil
	}
	return sameAttributes(e.Data, w.Data)
}

// isVerdict compares decoded values: the kernel and package nftables set the
// nesting flags of a verdict differently.
func (e DumpedExpr) isVerdict(want *expr.Verdict) (bool, error) {
	if e.Name != "immediate" {
		return false, nil
	}
	var have expr.Verdict
	if err := expr.Unmarshal(unix.NFPROTO_INET, e.Data, &have); err != nil {
		return false, fmt.Errorf("decode verdict: %w", err)
	}
	return have == *want, nil
}

// sameAttributes ignores the order. A missing attribute counts as zero.
func sameAttributes(a, b []byte) (bool, error) {
	as, errA := netlink.UnmarshalAttributes(a)
	bs, errB := netlink.UnmarshalAttributes(b)
	if err := errors.Join(errA, errB); err != nil {
		return false, fmt.Errorf("expression data: %w", err)
	}
	return covers(as, bs) && covers(bs, as), nil
}

// covers reports whether every attribute of b that is not zero is in a.
func covers(a, b []netlink.Attribute) bool {
	for _, want := range b {
		if len(bytes.Trim(want.Data, "\x00")) == 0 {
			continue
		}
		if !slices.ContainsFunc(a, func(have netlink.Attribute) bool {
			return AttrType(have) == AttrType(want) && bytes.Equal(have.Data, want.Data)
		}) {
			return false
		}
	}
	return true
}

// Attribute returns an attribute that follows a struct nfgenmsg; nil if it is
// missing.
func Attribute(data []byte, want uint16) []byte { return AttributeAfter(data, 4, want) }

// AttributeAfter returns an attribute that follows a header of that many bytes;
// nil if it is missing.
func AttributeAfter(data []byte, header int, want uint16) []byte {
	if len(data) < header {
		return nil
	}
	attrs, err := netlink.UnmarshalAttributes(data[header:])
	if err != nil {
		return nil
	}
	for _, a := range attrs {
		if AttrType(a) == want {
			return a.Data
		}
	}
	return nil
}

// AttrType is an attribute's type without its flags.
func AttrType(a netlink.Attribute) uint16 {
	return a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

// CString removes the NULs at the end.
func CString(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }
