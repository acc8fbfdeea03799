package server

import (
	"context"
	"errors"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/cache"
)

// wholeKey marks the key under which it is kept that no whole answer was to be
// had. It stands in the flag byte, where no stored answer has it.
const wholeKey = 0x40

// awaitWhole is await, and no cut answer for a TCP client: there is no larger
// transport to send it to. That upstream cuts its answer and cannot be asked
// over TCP is a failure like others for such clients, which is remembered
// (RFC 9520 §3.2); those that ask over UDP get what there is.
func (s *Server) awaitWhole(ctx context.Context, q *Query) (answer, error) {
	if !q.tcp {
		return s.await(ctx, q)
	}
	key := append([]byte(nil), q.key...)
	key[len(key)-1] |= wholeKey
	if q.zone.peek(key, s.clock(), nil).State == cache.Failed {
		return answer{}, errFailing
	}
	a, err := s.await(ctx, q)
	if err != nil || a.entry.Msg()[2]&(flagTC>>8) == 0 {
		return a, err
	}
	if q.zone.Cache == nil || isPrivate(q.key) {
		return answer{}, errCut
	}
	_, err = q.zone.Cache.PutFailure(key, new(dns.Msg).SetRcode(q.message(), dns.RcodeServerFailure))
	return answer{}, errors.Join(errCut, err)
}
