package upstream

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/miekg/dns"
)

// ErrNotMine means that the question is for another source: the name is outside the
// zones of this one, or this one does not know it and lets it fall through.
var ErrNotMine = errors.New("the question is for another source")

// ErrNoNameserver means that a resolv.conf has no nameserver line.
var ErrNoNameserver = errors.New("no nameserver")

// ErrOverloaded means that the limit of exchanges in flight is reached.
var ErrOverloaded = errors.New("too many queries in flight")

// Extended DNS Errors that an Error carries, RFC 8914 section 4.
const (
	edeOther                = dns.ExtendedErrorCodeOther
	edeNotReady             = dns.ExtendedErrorCodeNotReady
	edeNoReachableAuthority = dns.ExtendedErrorCodeNoReachableAuthority
	edeNetworkError         = dns.ExtendedErrorCodeNetworkError
)

// Error is the reason why there is no answer. The client gets SERVFAIL.
type Error struct {
	// EDE is the Extended DNS Error code for the client, RFC 8914: the first that an
	// upstream sent, else one for the failure between nodens and the upstreams.
	EDE uint16
	// Text is the EXTRA-TEXT of that upstream's EDE; may be empty.
	Text string
	// Rcode is the rcode of the last reply from an upstream; 0 if none came.
	Rcode int
	// Upstream holds every EDE that the upstreams sent, in order of arrival.
	Upstream []dns.EDNS0_EDE
	// Err names each endpoint tried and its result.
	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

// isTimeout reports whether err means that no reply came in time.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, syscall.ETIMEDOUT) || errors.As(err, &ne) && ne.Timeout()
}
