package netsetup

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rulesetID is the kernel's number of the ruleset of the namespace, which every
// change of any table makes another one. It is never 0.
func (h *Host) rulesetID() (id uint32, err error) {
	msg, err := familyMessage(unix.AF_UNSPEC, unix.NFT_MSG_GETGEN, 0)
	if err != nil {
		return 0, fmt.Errorf("read number of the nftables ruleset: %w", err)
	}
	err = h.withNetfilter(func(c *netlink.Conn) error {
		replies, err := c.Execute(msg)
		if err != nil {
			return err
		}
		for _, r := range replies {
			if b := attribute(r.Data, unix.NFTA_GEN_ID); len(b) == 4 {
				id = binary.BigEndian.Uint32(b)
			}
		}
		return nil
	})
	if err == nil && id == 0 {
		err = errors.New("the kernel does not tell it")
	}
	if err != nil {
		return 0, fmt.Errorf("read number of the nftables ruleset: %w", err)
	}
	return id, nil
}

// replaceRules puts want at the head of c and deletes have, if the ruleset still
// is the one of id at; else it fails with ERESTART. Handles, by which rules are
// deleted, begin anew in a table that is made anew: those that were read before
// would be the handles of other people's rules there.
func (h *Host) replaceRules(at uint32, c *foreignChain, have []dumpedRule, want []rule) error {
	var msgs []netlink.Message
	for i := len(want) - 1; i >= 0; i-- { // each goes before the one before
		m, err := c.insertion(want[i])
		if err != nil {
			return err
		}
		msgs = append(msgs, m)
	}
	for _, r := range have {
		m, err := c.ruleMessage(unix.NFT_MSG_DELRULE, 0,
			netlink.Attribute{Type: unix.NFTA_RULE_HANDLE, Data: binary.BigEndian.AppendUint64(nil, r.handle)})
		if err != nil {
			return err
		}
		msgs = append(msgs, m)
	}
	if len(msgs) == 0 {
		return nil
	}
	return h.withNetfilter(func(conn *netlink.Conn) error { return commitAt(conn, at, msgs...) })
}

// insertion is a message that puts r at the head of the chain.
func (c *foreignChain) insertion(r rule) (netlink.Message, error) {
	elems := make([]netlink.Attribute, len(r.exprs))
	for i, e := range r.exprs {
		b, err := expr.Marshal(byte(c.table.family), e)
		if err != nil {
			return netlink.Message{}, fmt.Errorf("encode expression: %w", err)
		}
		elems[i] = netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: b}
	}
	exprs, err := netlink.MarshalAttributes(elems)
	if err != nil {
		return netlink.Message{}, fmt.Errorf("encode expressions: %w", err)
	}
	return c.ruleMessage(unix.NFT_MSG_NEWRULE, netlink.Create,
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: exprs},
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: r.userData()})
}

func (c *foreignChain) ruleMessage(msgType int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
	place := []netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(c.table.name), 0)},
		{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(c.name), 0)},
	}
	return familyMessage(c.table.family, msgType, flags, append(place, attrs...)...)
}
