// Package dnstap sends dnstap messages (https://dnstap.info) to a reader over a Unix
// socket, TCP or TLS. It never makes a query wait.
package dnstap

import (
	"net/netip"
	"time"

	pb "github.com/dnstap/golang-dnstap"
	"google.golang.org/protobuf/proto"
)

// Protocol is the transport of a message.
type Protocol = pb.SocketProtocol

// The protocols that nodens uses.
const (
	UDP = pb.SocketProtocol_UDP
	TCP = pb.SocketProtocol_TCP
	TLS = pb.SocketProtocol_DOT
)

// Type says which party sent the message and which received it.
type Type = pb.Message_Type

// The types of messages that nodens sends.
const (
	ClientQuery       = pb.Message_CLIENT_QUERY
	ClientResponse    = pb.Message_CLIENT_RESPONSE
	ForwarderQuery    = pb.Message_FORWARDER_QUERY
	ForwarderResponse = pb.Message_FORWARDER_RESPONSE
)

// Message is a DNS message that was received or sent. Send does not keep Zone and Wire.
type Message struct {
	Type             Type
	Protocol         Protocol
	Client, Server   netip.AddrPort // invalid: unknown
	Queried, Replied time.Time      // Replied is zero in a query
	Zone             []byte         // in wire format
	Wire             []byte         // the DNS message
}

// encode returns m as a dnstap payload of t.
func (t *Tap) encode(m *Message) ([]byte, error) {
	p := &pb.Message{Type: m.Type.Enum(), SocketProtocol: m.Protocol.Enum(), QueryZone: m.Zone}
	family := func(a netip.Addr) {
		p.SocketFamily = pb.SocketFamily_INET6.Enum()
		if a.Is4() {
			p.SocketFamily = pb.SocketFamily_INET.Enum()
		}
	}
	if m.Client.IsValid() {
		p.QueryAddress, p.QueryPort = m.Client.Addr().AsSlice(), proto.Uint32(uint32(m.Client.Port()))
		family(m.Client.Addr())
	}
	if m.Server.IsValid() && !m.Server.Addr().IsUnspecified() {
		p.ResponseAddress, p.ResponsePort = m.Server.Addr().AsSlice(), proto.Uint32(uint32(m.Server.Port()))
		family(m.Server.Addr())
	}
	p.QueryTimeSec, p.QueryTimeNsec = proto.Uint64(uint64(m.Queried.Unix())), proto.Uint32(uint32(m.Queried.Nanosecond()))
	wire := &p.QueryMessage
	if !m.Replied.IsZero() {
		p.ResponseTimeSec, p.ResponseTimeNsec = proto.Uint64(uint64(m.Replied.Unix())), proto.Uint32(uint32(m.Replied.Nanosecond()))
		wire = &p.ResponseMessage
	}
	if t.cfg.Full {
		*wire = m.Wire
	}
	return proto.Marshal(&pb.Dnstap{
		Type: pb.Dnstap_MESSAGE.Enum(), Message: p,
		Identity: t.cfg.Identity, Version: t.cfg.Version, Extra: t.cfg.Extra,
	})
}
