package server

import (
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miekg/dns"
)

// job is a query being resolved and the destination of its reply. Exactly one of
// sock, conn and inner is set.
type job struct {
	srv     *resolver
	q       Query
	out     *replyBuffer // nil until the reply is made: a waiting job has none
	lis     *listener
	timer   *time.Timer  // ends the wait early; not nil: the job is not reused
	sibling *siblingWait // nil: it waits for its own answer

	sock    *udpSocket
	sa      unix.RawSockaddrInet6
	saLen   uint32
	control []byte

	conn  *tcpConn
	inner chan<- innerReply // for an action, not for a client; capacity 1
}

// innerReply is the reply to a query of an action.
type innerReply struct {
	msg []byte
	outcome
}

// replyBuffer is memory for one reply.
type replyBuffer struct{ b []byte }

// buffer returns empty memory for the reply.
func (j *job) buffer() []byte {
	if j.out == nil {
		j.out, _ = j.srv.buffers.Get().(*replyBuffer)
	}
	if j.out == nil {
		j.out = new(replyBuffer)
	}
	return j.out.b[:0]
}

// newJob returns a job for a copy of q.
func (s *resolver) newJob(q *Query) *job {
	j, ok := s.jobs.Get().(*job)
	if !ok {
		j = &job{srv: s}
	}
	q.copyTo(&j.q)
	return j
}

// start begins to resolve j, which has a slot. The drain of l waits for j. start
// does not block.
func (s *resolver) start(l *listener, j *job) {
	j.lis = l
	l.jobs.Add(1)
	j.begin()
}

// reject appends the reply to q if q gets no slot because of err: SERVFAIL, or an
// expired answer. After REFUSED, some resolvers would wait for another server's
// reply.
func (s *resolver) reject(dst []byte, reader int, q *Query, err error) []byte {
	if err == refusedClient {
		s.metrics.clientLimited.Add(1)
	} else {
		s.metrics.missLimited.Add(1)
	}
	reply, o := s.unanswered(dst, q, err)
	o.waited = false
	s.record(reader, q, reply, o)
	return reply
}

// finish ends j with its reply. Before it sends the reply, it updates the counters
// and releases the slot, because the client may send its next query as soon as it
// has the reply.
func (j *job) finish(reply []byte, o outcome) {
	if j.inner != nil {
		j.inner <- innerReply{reply, o}
		return
	}
	l, s := j.lis, j.srv
	j.lis = nil
	defer l.jobs.Done()
	s.misses.release(j.q.zone, j.q.client.Addr())
	if !o.dropped {
		s.record(s.readers, &j.q, reply, o)
	}
	switch {
	case j.conn != nil:
		j.conn.finish(j, reply)
	case !o.dropped && j.sock.reply(j, reply) != nil:
		s.metrics.sendErrors.Add(1)
	}
	if j.out != nil {
		if !o.dropped {
			j.out.b = reply[:0]
		}
		s.buffers.Put(j.out)
		j.out = nil
	}
	if j.timer == nil && j.conn == nil { // else the timer or the connection may still read j
		j.sock, j.sibling, j.q.zone = nil, nil, nil
		s.jobs.Put(j)
	}
}

// recoverPanic, deferred, answers j with SERVFAIL after a panic.
func (j *job) recoverPanic() {
	p := recover()
	if p == nil {
		return
	}
	j.srv.reportPanic("resolving "+j.q.presentation(), p)
	if j.lis != nil {
		reply := appendError(nil, &j.q, dns.RcodeServerFailure, ede{})
		j.finish(reply, outcome{rcode: dns.RcodeServerFailure})
	}
}

// recoverPanic, deferred, prevents a panic from ending the process.
func (s *resolver) recoverPanic(what string) {
	if p := recover(); p != nil {
		s.reportPanic(what, p)
	}
}

// reportPanic logs the stack of a panic and counts it. The count raises an
// alert.
func (s *resolver) reportPanic(what string, p any) {
	s.metrics.panics.Add(1)
	s.log.Error("panic", "in", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
