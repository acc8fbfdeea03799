// Package nft reads and writes nftables where package nftables lacks a call or
// would lose something: raw rules, owned tables, and transactions that fail if
// the ruleset has changed.
package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Timeout bounds each operation on a netfilter socket.
const Timeout = 30 * time.Second

// Client works in one network namespace. It opens a socket per operation.
type Client struct {
	NetNS int // file descriptor; 0: the process's own
}

// Dial returns a connection of package nftables; each of its operations opens a
// socket and ends within Timeout.
func (c Client) Dial(options ...nftables.ConnOption) (*nftables.Conn, error) {
	conn, err := nftables.New(append(options, nftables.WithNetNSFd(c.NetNS), nftables.WithSockOptions(limit))...)
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return conn, nil
}

func limit(conn *netlink.Conn) error { return conn.SetDeadline(time.Now().Add(Timeout)) }

// do runs f with a new socket and closes the socket afterwards.
func (c Client) do(f func(*netlink.Conn) error) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.NetNS})
	if err != nil {
		return err
	}
	if err = limit(conn); err == nil {
		err = f(conn)
	}
	return errors.Join(err, conn.Close())
}

// request sends msg and passes each reply to read.
func (c Client) request(msg netlink.Message, read func(netlink.Message) error) error {
	return c.do(func(conn *netlink.Conn) error {
		replies, err := conn.Execute(msg)
		for _, r := range replies {
			err = errors.Join(err, read(r))
		}
		return err
	})
}

// TableID identifies a table among those of all families.
type TableID struct {
	Family nftables.TableFamily
	Name   string
}

func (t TableID) String() string { return FamilyName(t.Family) + " " + t.Name }

// Inet identifies a table of family inet.
func Inet(name string) TableID { return TableID{nftables.TableFamilyINet, name} }

// FamilyName is "" for a family whose chains see none of the host's IP traffic.
func FamilyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	}
	return ""
}

// Table is a table as the kernel has it.
type Table struct {
	Handle []byte // value of NFTA_TABLE_HANDLE, network order; nil if the table does not exist
	Flags  uint32 // Flag…
}

// From linux/netfilter/nf_tables.h; package unix lacks them.
const (
	AttrTableHandle = 4 // NFTA_TABLE_HANDLE: u64
	FlagDormant     = 1 // NFT_TABLE_F_DORMANT: the chains are not hooked
	FlagOwner       = 2 // NFT_TABLE_F_OWNER
)

// Table returns the zero Table if it does not exist.
func (c Client) Table(id TableID) (t Table, err error) {
	msg, err := Message(id.Family, unix.NFT_MSG_GETTABLE, 0, String(unix.NFTA_TABLE_NAME, id.Name))
	if err == nil {
		err = c.request(msg, func(r netlink.Message) error {
			t.Handle = Attribute(r.Data, AttrTableHandle)
			if b := Attribute(r.Data, unix.NFTA_TABLE_FLAGS); len(b) == 4 {
				t.Flags = binary.BigEndian.Uint32(b)
			}
			return nil
		})
	}
	if errors.Is(err, unix.ENOENT) {
		return Table{}, nil
	}
	if err != nil {
		return t, fmt.Errorf("read nftables table %s: %w", id, err)
	}
	return t, nil
}

// RulesetID returns the kernel's number of the namespace's ruleset. Every change
// of any table changes it. It is never 0.
func (c Client) RulesetID() (id uint32, err error) {
	msg, err := Message(unix.AF_UNSPEC, unix.NFT_MSG_GETGEN, 0)
	if err == nil {
		err = c.request(msg, func(r netlink.Message) error {
			if b := Attribute(r.Data, unix.NFTA_GEN_ID); len(b) == 4 {
				id = binary.BigEndian.Uint32(b)
			}
			return nil
		})
	}
	if err == nil && id == 0 {
		err = errors.New("not in the kernel's reply")
	}
	if err != nil {
		return 0, fmt.Errorf("read number of the nftables ruleset: %w", err)
	}
	return id, nil
}

// Commit sends msgs as one transaction and waits for its end. Unless at is 0 it
// fails with ERESTART if the ruleset no longer has that number.
func (c Client) Commit(at uint32, msgs ...netlink.Message) error {
	return c.do(func(conn *netlink.Conn) error { return Commit(conn, at, msgs...) })
}

// Commit is Client.Commit on a given socket.
func Commit(conn *netlink.Conn, at uint32, msgs ...netlink.Message) error {
	edge := func(t netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: t, Flags: netlink.Request},
			Data:   nfGenMsg(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	begin := edge(unix.NFNL_MSG_BATCH_BEGIN)
	if at != 0 {
		id, err := netlink.MarshalAttributes([]netlink.Attribute{Uint32(unix.NFNL_BATCH_GENID, at)})
		if err != nil {
			return err
		}
		begin.Data = append(begin.Data, id...)
	}
	msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge // the kernel reports errors in any case, and first
	batch := append(append([]netlink.Message{begin}, msgs...), edge(unix.NFNL_MSG_BATCH_END))
	if _, err := conn.SendMessages(batch); err != nil {
		return err
	}
	_, err := conn.Receive()
	return err
}

// Message returns a netfilter message of an nftables type.
func Message(family nftables.TableFamily, msgType int, flags netlink.HeaderFlags, attrs ...netlink.Attribute) (netlink.Message, error) {
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

// String is an attribute whose value ends with a NUL.
func String(attr uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: attr, Data: append([]byte(value), 0)}
}

// Uint32 is an attribute whose value is in network order.
func Uint32(attr uint16, value uint32) netlink.Attribute {
	return netlink.Attribute{Type: attr, Data: binary.BigEndian.AppendUint32(nil, value)}
}
