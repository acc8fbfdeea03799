package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxWindow   = 256             // an ID is a slot and a generation, one byte each
	lostAfter   = 1 * time.Second // without an answer a query counts as lost
	sweepEvery  = 100 * time.Millisecond
	maxLatency  = 1 << 19 // samples kept per job
	timerSlack  = 1       // nanoseconds; the kernel's default of 50 µs is too coarse for the rate
	receiveRoom = 4 << 20 // bytes
)

// job is a job for the generator, one line of JSON on its standard input.
type job struct {
	Server   netip.AddrPort
	Echo     bool // the server only echoes
	Dropped  bool // the pod drops its queries: each query sent counts as answered
	Mix      mix
	From, To int           // range of the names, without To
	Duration time.Duration // of random queries; 0: query each name once, in order
	Window   int           // maximum of queries in flight
	Rate     int           // per second; 0: as fast as the window allows
}

// result is the generator's result, one line of JSON.
type result struct {
	Answers  int // correct answers
	Wrong    int
	Lost     int
	Wall     time.Duration
	P50, P99 time.Duration
	Err      string
}

// slot is a query in flight, or free.
type slot struct {
	query    [bufLen]byte
	len      int
	sent     time.Duration // since the start of the job
	negative bool
	live     bool
	gen      byte // changes with each use, so that a late answer is recognized
}

// generator sends the queries of one job and checks the answers, in one thread.
type generator struct {
	job
	result
	fd        int
	questions *questions
	slots     [maxWindow]slot
	free      []byte
	rx, tx    *batch
	began     time.Time
	swept     time.Duration
	next      int    // the next name, or the number of queries sent
	random    uint64 // xorshift state
	latency   []time.Duration
}

// generate runs the jobs from r, one after another.
func generate(r io.Reader, w io.Writer) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0); err != nil {
		return fmt.Errorf("set timer slack: %w", err)
	}
	in, out := json.NewDecoder(r), json.NewEncoder(w)
	for {
		var j job
		if err := in.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		runtime.GC()
		res, err := runJob(j)
		if err != nil {
			res.Err = err.Error()
		}
		if err := out.Encode(res); err != nil {
			return err
		}
	}
}

func runJob(j job) (result, error) {
	if j.Window < 1 || j.Window > maxWindow || j.From < 0 || j.From >= j.To || j.To > maxNames {
		return result{}, fmt.Errorf("impossible job %+v", j)
	}
	q, err := newQuestions(j.Mix)
	if err != nil {
		return result{}, err
	}
	g := &generator{job: j, questions: q, rx: newBatch(false), tx: newBatch(false), random: 0x9e3779b97f4a7c15,
		next: j.From, latency: make([]time.Duration, 0, maxLatency)}
	for i := range j.Window {
		g.free = append(g.free, byte(i))
	}
	fd, err := connect(j.Server)
	if err != nil {
		return result{}, err
	}
	defer unix.Close(fd)
	g.fd, g.began = fd, time.Now()
	if err := g.run(); err != nil {
		return g.result, err
	}
	slices.Sort(g.latency)
	g.P50, g.P99 = percentile(g.latency, 50), percentile(g.latency, 99)
	return g.result, nil
}

func connect(to netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveRoom) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveRoom)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return 0, errors.Join(fmt.Errorf("connect to %v: %w", to, err), unix.Close(fd))
	}
	return fd, nil
}

// run sends queries until the job is done and then waits for the last answers.
func (g *generator) run() error {
	for {
		now := time.Since(g.began)
		due, wait := g.due(now)
		if due < 0 {
			break
		}
		if due > 0 {
			if err := g.send(due, now); err != nil {
				return err
			}
		}
		if g.Dropped {
			continue
		}
		if err := g.receive(wait); err != nil {
			return err
		}
	}
	g.Wall = time.Since(g.began)
	for len(g.free) < g.Window {
		if err := g.receive(sweepEvery); err != nil {
			return err
		}
	}
	if g.Duration == 0 {
		g.Wall = time.Since(g.began)
	}
	return nil
}

// due returns how many queries to send now, -1 at the end, and how long to wait
// for answers after that.
func (g *generator) due(now time.Duration) (int, time.Duration) {
	switch {
	case g.Duration > 0 && now >= g.Duration, g.Duration == 0 && g.next >= g.To:
		return -1, 0
	case g.Duration == 0:
		return min(len(g.free), batchSize, g.To-g.next), sweepEvery
	case g.Rate == 0:
		return min(len(g.free), batchSize), sweepEvery
	}
	at := func(k int) time.Duration { return time.Duration(k) * time.Second / time.Duration(g.Rate) }
	n := 0
	for sent := g.next - g.From; at(sent+n) <= now && n < min(len(g.free), batchSize); {
		n++
	}
	return n, max(0, min(at(g.next-g.From+n)-now, sweepEvery))
}

// send sends n queries. At least n slots must be free.
func (g *generator) send(n int, now time.Duration) error {
	var used [batchSize]byte
	for k := range n {
		id := g.free[len(g.free)-1]
		g.free = g.free[:len(g.free)-1]
		used[k] = id
		s, name := &g.slots[id], g.pick()
		s.gen++
		s.live, s.sent, s.negative = true, now, g.Mix.negative(name)
		s.len = g.questions.put(s.query[:], uint16(s.gen)<<8|uint16(id), name, s.negative)
		g.tx.set(k, s.query[:s.len])
	}
	for sent := 0; sent < n; {
		k, errno := g.tx.send(uintptr(g.fd), sent, n)
		if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR && errno != unix.ECONNREFUSED {
			return fmt.Errorf("send to %v: %w", g.Server, errno)
		}
		sent += k
	}
	if g.Dropped {
		g.free = append(g.free, used[:n]...)
		g.Answers += n
	}
	return nil
}

// pick chooses the next name: in order, or at random.
func (g *generator) pick() int {
	i := g.next
	g.next++
	if g.Duration == 0 {
		return i
	}
	g.random ^= g.random << 13
	g.random ^= g.random >> 7
	g.random ^= g.random << 17
	return g.From + int(g.random>>32)*(g.To-g.From)>>32
}

// receive reads the datagrams in the socket buffer, and waits if there are none.
func (g *generator) receive(wait time.Duration) error {
	most := min(g.Window, batchSize) // with a window of 1, do not read for a second reply
	n, errno := g.rx.recv(uintptr(g.fd), most)
	if errno == unix.EAGAIN && wait > 0 {
		ts := unix.NsecToTimespec(int64(wait))
		if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}, &ts, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for %v: %w", g.Server, err)
		}
		n, errno = g.rx.recv(uintptr(g.fd), most)
	}
	if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR && errno != unix.ECONNREFUSED {
		return fmt.Errorf("receive from %v: %w", g.Server, errno)
	}
	now := time.Since(g.began)
	for i := range n {
		g.take(g.rx.datagram(i), now)
	}
	if now-g.swept > sweepEvery {
		g.sweep(now)
	}
	return nil
}

// take checks an answer and frees its slot.
func (g *generator) take(reply []byte, now time.Duration) {
	if len(reply) < 12 || int(reply[1]) >= g.Window {
		g.Wrong++
		return
	}
	s := &g.slots[reply[1]]
	if !s.live || s.gen != reply[0] {
		return // late: it has been counted as lost
	}
	s.live = false
	g.free = append(g.free, reply[1])
	if !right(reply, s.query[:s.len], s.negative, g.Echo) {
		g.Wrong++
		return
	}
	g.Answers++
	if len(g.latency) < maxLatency {
		g.latency = append(g.latency, now-s.sent)
	}
}

// sweep drops queries without an answer after lostAfter.
func (g *generator) sweep(now time.Duration) {
	g.swept = now
	for i := range g.Window {
		if s := &g.slots[i]; s.live && now-s.sent > lostAfter {
			s.live = false
			g.Lost++
			g.free = append(g.free, byte(i))
		}
	}
}
