package server

import (
	"context"
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/miekg/dns"
)

// job is a query being resolved and the way its reply goes back. One of sock
// and conn is set.
type job struct {
	q   Query
	out []byte
	lis *listener

	sock    *udpSocket
	sa      unix.RawSockaddrInet6
	saLen   uint32
	control []byte

	conn *tcpConn
}

// newJob returns a job to be given back with freeJob.
func (s *Server) newJob() *job {
	if j, ok := s.jobs.Get().(*job); ok {
		return j
	}
	return new(job)
}

func (s *Server) freeJob(j *job) {
	j.sock, j.conn, j.lis, j.q.zone = nil, nil, nil, nil
	s.jobs.Put(j)
}

// start resolves j in a goroutine that l waits for. Above the limits of misses
// the client gets SERVFAIL at once: a reply is never owed in silence, and REFUSED
// would make some resolvers wait for another server's.
func (s *Server) start(l *listener, j *job) {
	if s.quota.enter(j.q.client.Addr()) {
		select {
		case s.misses <- struct{}{}:
			j.lis = l
			l.jobs.Add(1)
			s.crew.do(j)
			return
		default:
		}
		s.quota.leave(j.q.client.Addr())
		s.metrics.missLimited.Add(1)
		s.turnAway(j, "too many queries are being resolved")
		return
	}
	s.metrics.clientLimited.Add(1)
	s.turnAway(j, "too many queries of this client are being resolved")
}

// turnAway answers j without resolving it.
func (s *Server) turnAway(j *job, why string) {
	defer j.conn.done()
	s.finish(j, appendError(j.out[:0], &j.q, dns.RcodeServerFailure, ede{set: true, code: edeNotReady, text: why}),
		outcome{rcode: dns.RcodeServerFailure})
}

// work resolves j and answers it.
func (s *Server) work(j *job) {
	defer j.lis.jobs.Done()
	defer j.conn.done()
	defer func() { <-s.misses }()
	defer s.survive("reply")
	reply, o := s.resolveSafely(j)
	s.quota.leave(j.q.client.Addr()) // who has the reply may ask the next question
	s.finish(j, reply, o)
}

// resolveSafely turns a panic into SERVFAIL.
func (s *Server) resolveSafely(j *job) (reply []byte, o outcome) {
	defer func() {
		if p := recover(); p != nil {
			s.tellPanic("resolving "+j.q.presentation(), p)
			o = outcome{rcode: dns.RcodeServerFailure}
			reply = appendError(j.out[:0], &j.q, dns.RcodeServerFailure, ede{})
		}
	}()
	return s.resolve(j)
}

// survive, deferred, keeps a panic from ending the node's DNS.
func (s *Server) survive(what string) {
	if p := recover(); p != nil {
		s.tellPanic(what, p)
	}
}

// tellPanic logs the stack and counts: the count is an alert.
func (s *Server) tellPanic(what string, p any) {
	s.metrics.panics.Add(1)
	s.log.Error("panic", "in", what, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// finish sends the reply of a miss and gives the job back. It is counted before
// it is sent: who has an answer finds it counted.
func (s *Server) finish(j *job, reply []byte, o outcome) {
	if o.dropped {
		s.freeJob(j)
		return
	}
	s.record(s.workers, &j.q, reply, o)
	var err error
	if j.conn != nil {
		err = j.conn.reply(reply)
	} else {
		err = j.sock.reply(j, reply)
	}
	if err != nil {
		s.metrics.sendErrors.Add(1)
	}
	j.out = reply[:0]
	s.freeJob(j)
}

// context is what the job's wait ends with: the connection it came from, or
// the server.
func (j *job) context(server context.Context) context.Context {
	if j.conn != nil {
		return j.conn.ctx
	}
	return server
}
