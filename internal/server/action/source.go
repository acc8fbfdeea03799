package action

import (
	"net/netip"

	"github.com/miekg/dns"
)

// Request is a question to a source of this package.
type Request struct {
	Msg    *dns.Msg // must not be modified
	Client netip.AddrPort
	TCP    bool
	// Lookup looks up another name in class IN. It returns nil if there is no
	// answer.
	Lookup func(name string, qtype uint16) *dns.Msg
}

// Reply is the reply of a source. A nil Msg means that the source does not
// answer such questions.
type Reply struct {
	Msg     *dns.Msg
	Private bool      // valid for this client only: must not be stored
	EDE     *ReplyEDE // nil: none
}

// ReplyEDE is the Extended DNS Error of a reply (RFC 8914).
type ReplyEDE struct {
	Code uint16
	Text string
}

// Error is the reason why a source failed. Text is for the client.
type Error struct {
	Text string
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }
