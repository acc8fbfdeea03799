package server

import (
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miekg/dns"
)

// job is a query being resolved and the way its reply goes back. Exactly one of
// sock, conn and inner is set.
type job struct {
	srv   *resolver
	q     Query
	out   *replyBuffer // nil until the reply is made: a waiting job has none
	lis   *listener
	timer *time.Timer // ends the wait early; not nil: the job is not reused

	sock    *udpSocket
	sa      unix.RawSockaddrInet6
	saLen   uint32
	control []byte

	conn  *tcpConn
	inner chan<- innerReply // for an action, not for a client; capacity 1
}

// innerReply is the reply to a question that an action asks.
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

// start begins to resolve j; l waits for it. Above the limits of misses the
// client gets SERVFAIL at once. REFUSED would make some resolvers wait for
// another server's reply.
func (s *resolver) start(l *listener, j *job) {
	if !s.quota.acquire(j.q.client.Addr()) {
		s.metrics.clientLimited.Add(1)
		j.reject("too many queries of this client are being resolved")
		return
	}
	select {
	case s.misses <- struct{}{}:
		j.lis = l
		l.jobs.Add(1)
		j.begin()
	default:
		s.quota.release(j.q.client.Addr())
		s.metrics.missLimited.Add(1)
		j.reject("too many queries are being resolved")
	}
}

// reject answers j without resolving it.
func (j *job) reject(why string) {
	reply := appendError(j.buffer(), &j.q, dns.RcodeServerFailure, ede{set: true, code: edeNotReady, text: why})
	j.send(reply, outcome{rcode: dns.RcodeServerFailure})
}

// finish ends j with its reply.
func (j *job) finish(reply []byte, o outcome) {
	if j.inner != nil {
		j.inner <- innerReply{reply, o}
		return
	}
	l := j.lis
	j.lis = nil
	defer func() {
		<-j.srv.misses
		l.jobs.Done()
	}()
	j.srv.quota.release(j.q.client.Addr()) // before the reply: the client may ask the next question then
	j.send(reply, o)
}

// send sends the reply to j and gives j back. Counters are updated before the
// reply is sent.
func (j *job) send(reply []byte, o outcome) {
	conn := j.conn
	if conn != nil {
		defer conn.done()
	}
	if !o.dropped {
		j.srv.record(j.srv.readers, &j.q, reply, o)
		var err error
		if conn != nil {
			err = conn.reply(reply)
		} else {
			err = j.sock.reply(j, reply)
		}
		if err != nil {
			j.srv.metrics.sendErrors.Add(1)
		}
	}
	if j.out != nil {
		if !o.dropped {
			j.out.b = reply[:0]
		}
		j.srv.buffers.Put(j.out)
		j.out = nil
	}
	if j.timer == nil { // else answerEarly may still read j
		j.sock, j.conn, j.q.zone = nil, nil, nil
		j.srv.jobs.Put(j)
	}
}

// recoverJob, deferred, answers j with SERVFAIL after a panic.
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

// recoverPanic, deferred, keeps a panic from ending the process.
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
