package netsetup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpedRule is a rule as the kernel has it. The library's own reader drops
// expressions that it does not know, socket among them, which would hide drift.
type dumpedRule struct {
	chain    string
	handle   uint64
	exprs    []dumpedExpr
	userData []byte
}

type dumpedExpr struct {
	name string
	data []byte // content of NFTA_EXPR_DATA; may be empty
}

// dumpRules returns the rules of a table of family inet in order, none where
// the table does not exist.
func (h *Host) dumpRules(table string) ([]dumpedRule, error) {
	return h.dumpRulesOf(tableID{nftables.TableFamilyINet, table}, "")
}

// dumpRulesOf is dumpRules for any family, and for one chain unless that is
// empty.
func (h *Host) dumpRulesOf(table tableID, chain string) (rules []dumpedRule, err error) {
	attrs := []netlink.Attribute{{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table.name), 0)}}
	if chain != "" {
		attrs = append(attrs, netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)})
	}
	msg, err := familyMessage(table.family, unix.NFT_MSG_GETRULE, netlink.Dump, attrs...)
	if err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", table, err)
	}
	err = h.withNetfilter(func(c *netlink.Conn) error {
		replies, err := c.Execute(msg)
		if err != nil {
			return err
		}
		for _, r := range replies {
			parsed, err := parseRule(r.Data)
			if err != nil {
				return err
			}
			rules = append(rules, parsed)
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read rules of table %s: %w", table, err)
	}
	return rules, nil
}

// parseRule reads the payload of an NFT_MSG_NEWRULE message.
func parseRule(data []byte) (dumpedRule, error) {
	r := dumpedRule{
		chain:    cString(attribute(data, unix.NFTA_RULE_CHAIN)),
		userData: attribute(data, unix.NFTA_RULE_USERDATA),
	}
	if b := attribute(data, unix.NFTA_RULE_HANDLE); len(b) == 8 {
		r.handle = binary.BigEndian.Uint64(b)
	}
	elems, err := netlink.UnmarshalAttributes(attribute(data, unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return r, fmt.Errorf("expressions: %w", err)
	}
	for _, elem := range elems {
		e, err := parseExpr(elem.Data)
		if err != nil {
			return r, err
		}
		r.exprs = append(r.exprs, e)
	}
	return r, nil
}

// parseExpr reads an expression's name and data.
func parseExpr(elem []byte) (e dumpedExpr, err error) {
	attrs, err := netlink.UnmarshalAttributes(elem)
	if err != nil {
		return e, fmt.Errorf("expression: %w", err)
	}
	for _, a := range attrs {
		switch attrType(a) {
		case unix.NFTA_EXPR_NAME:
			e.name = cString(a.Data)
		case unix.NFTA_EXPR_DATA:
			e.data = a.Data
		}
	}
	return e, nil
}

// is compares with an expression as the library sends it.
func (e dumpedExpr) is(want expr.Any) (bool, error) {
	if v, ok := want.(*expr.Verdict); ok {
		return e.isVerdict(v)
	}
	b, err := expr.Marshal(unix.NFPROTO_INET, want)
	if err != nil {
		return false, fmt.Errorf("encode expression: %w", err)
	}
	w, err := parseExpr(b)
	if err != nil || w.name != e.name {
		return false, err
	}
	if w.name == "counter" { // what it has counted is no drift
		return true, nil
	}
	return sameAttributes(e.data, w.data)
}

// isVerdict compares decoded: the kernel and the library flag the nesting of a
// verdict differently.
func (e dumpedExpr) isVerdict(want *expr.Verdict) (bool, error) {
	if e.name != "immediate" {
		return false, nil
	}
	var have expr.Verdict
	if err := expr.Unmarshal(unix.NFPROTO_INET, e.data, &have); err != nil {
		return false, fmt.Errorf("decode verdict: %w", err)
	}
	return have == *want, nil
}

// sameAttributes compares without regard to order. An attribute that one side
// leaves out counts as zero.
func sameAttributes(a, b []byte) (bool, error) {
	as, errA := netlink.UnmarshalAttributes(a)
	bs, errB := netlink.UnmarshalAttributes(b)
	if err := errors.Join(errA, errB); err != nil {
		return false, fmt.Errorf("expression data: %w", err)
	}
	return covers(as, bs) && covers(bs, as), nil
}

// covers says whether every attribute of b that is not zero is in a.
func covers(a, b []netlink.Attribute) bool {
	for _, want := range b {
		if len(bytes.Trim(want.Data, "\x00")) == 0 {
			continue
		}
		if !slices.ContainsFunc(a, func(have netlink.Attribute) bool {
			return attrType(have) == attrType(want) && bytes.Equal(have.Data, want.Data)
		}) {
			return false
		}
	}
	return true
}

// attribute finds an attribute behind a struct nfgenmsg; nil where it is
// missing.
func attribute(data []byte, want uint16) []byte { return attributeAfter(data, 4, want) }

func attrType(a netlink.Attribute) uint16 {
	return a.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

func cString(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

// tableMessage is a message on family inet, for what the library has no call
// for.
func tableMessage(msgType int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	return familyMessage(nftables.TableFamilyINet, msgType, flags, attrs...)
}

func familyMessage(family nftables.TableFamily, msgType int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	body, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return netlink.Message{}, err
	}
	return netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | msgType),
			Flags: netlink.Request | flags,
		},
		Data: append(nfGenMsg(byte(family), 0), body...),
	}, nil
}

// nfGenMsg is struct nfgenmsg: family, version, resource id (network order).
func nfGenMsg(family byte, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}

// commit sends one message as a transaction and waits for its acknowledgement.
func commit(conn *netlink.Conn, msg netlink.Message) error { return commitAt(conn, 0, msg) }

// commitAt sends msgs as one transaction and waits for the end of it. Unless at
// is 0 it fails with ERESTART if the ruleset is no longer the one of that id.
func commitAt(conn *netlink.Conn, at uint32, msgs ...netlink.Message) error {
	edge := func(t netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: t, Flags: netlink.Request},
			Data:   nfGenMsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	begin := edge(unix.NFNL_MSG_BATCH_BEGIN)
	if at != 0 {
		id, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFNL_BATCH_GENID, Data: binary.BigEndian.AppendUint32(nil, at)}})
		if err != nil {
			return err
		}
		begin.Data = append(begin.Data, id...)
	}
	msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge // the kernel tells errors anyway, and first
	batch := append(append([]netlink.Message{begin}, msgs...), edge(unix.NFNL_MSG_BATCH_END))
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	_, err := conn.Receive()
	return err
}

// withNetfilter runs f with a socket of its own.
func (h *Host) withNetfilter(f func(*netlink.Conn) error) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: h.cfg.NetNS})
	if err != nil {
		return err
	}
	return errors.Join(f(conn), conn.Close())
}

// firstString ends at the first NUL.
func firstString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}
