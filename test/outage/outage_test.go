package outage

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

// drill is one upstream failure under one load and one memory limit.
type drill struct {
	behaviour behaviour
	name      string
	extra     string // directives of nodens's Corefile
	load      load
	limit     int64 // of memory, in bytes
}

const hitRate = 1000 // per second, of names that are cached

// drills lists all combinations. Without -full it is one load, which an emulated
// machine bears too.
func drills() []drill {
	loads := []load{{2, 1000}}
	switch {
	case *emulated:
		loads = []load{{1, 500}}
	case *full:
		loads = []load{{1, 500}, {2, 1000}, {50, 50000}}
	}
	var all []drill
	for _, mib := range limits() {
		for _, b := range []struct {
			behaviour
			name, extra string
		}{
			{dead, "dead", ""},
			{slow, "500 ms", ""},
			{lossy, "50% loss", ""},
			{dropsAAAA, "AAAA dropped, normalize", " normalize example\n"},
		} {
			for _, l := range loads {
				all = append(all, drill{b.behaviour, b.name, b.extra, l, mib << 20})
			}
		}
	}
	return all
}

func limits() []int64 {
	if *limit == "" {
		if *full {
			return []int64{64, 128}
		}
		return []int64{64}
	}
	var all []int64
	for s := range strings.SplitSeq(*limit, ",") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			panic(err) // a typing error on the command line
		}
		all = append(all, n)
	}
	return all
}

func (d drill) String() string {
	return fmt.Sprintf("%d MiB, %s, %v", d.limit>>20, d.name, d.load)
}

// result is the result of one subject in one drill.
type result struct {
	hits, misses  tally
	kills         int
	before, after usage
	peak          int64         // bytes, as read every 100 ms
	settled       time.Duration // from the end of the drill until memory was back to normal; 0: it was not
	dropped       drops
	back          time.Duration // from the return of the upstream to the first answer
}

func (r *result) String() string {
	return fmt.Sprintf("hits %6.2f%%  misses answered %6.2f%% of %d (good %5.1f%%) longest %4d ms  dropped %v (load paused %d ms)  OOM %d  MiB %3d before %3d peak %3d after %4.1f s  back in %4d ms",
		r.hits.share(), r.misses.share(), r.misses.sent, r.misses.good(), r.misses.longest.Milliseconds(), r.dropped, r.misses.pause.Milliseconds(), r.kills, r.before.memory>>20, r.peak>>20, r.after.memory>>20, r.settled.Seconds(), r.back.Milliseconds())
}

// peerLength limits a drill of CoreDNS or unbound, which are only shown.
const peerLength = 8 * time.Second

// cellTime is more than a drill of one minute takes with one subject.
const cellTime = 2 * time.Minute

// TestOutage runs all drills and holds nodens to the goals. The peers are shown
// only. It prints a table at the end, also if some fail.
func TestOutage(t *testing.T) {
	var rows report
	for _, d := range drills() {
		if *only != "" && !regexp.MustCompile(*only).MatchString(d.String()) {
			continue
		}
		t.Run(d.String(), func(t *testing.T) {
			for _, name := range d.subjects() {
				t.Run(name, func(t *testing.T) { d.test(t, name, &rows) })
			}
		})
	}
	t.Logf("\n%s", rows)
}

// subjects are those that run d.
func (d drill) subjects() []string {
	if *peers && d.extra == "" {
		return []string{"nodens", "coredns", "unbound"}
	}
	return []string{"nodens"}
}

// test runs d with one subject, adds a row, and judges nodens.
func (d drill) test(t *testing.T, name string, rows *report) {
	if end, ok := t.Deadline(); ok && time.Until(end) < cellTime {
		t.Fatal("not run: too little time is left until the deadline of go test")
	}
	r, length := new(result), drillLength()
	if name != "nodens" {
		length = min(length, peerLength)
	}
	defer func() { rows.add(d, name, length, r, t.Failed()) }()
	d.run(t, name, length, r)
	t.Logf("%-7s %v", name, r)
	if name != "nodens" {
		return
	}
	r.judge(t)
	if *full && d.behaviour == slow && d.load.rate/d.load.clients <= 500 && r.misses.good() < 90 {
		t.Errorf("%.1f%% of the misses of a slow upstream succeeded", r.misses.good()) // all, on an idle machine
	}
}

// judge holds a result to the goals.
func (r *result) judge(t *testing.T) {
	t.Helper()
	if r.kills > 0 {
		t.Errorf("the kernel's OOM killer killed %d processes", r.kills)
	}
	if r.hits.share() < 99.5 {
		t.Errorf("%.2f%% of the hits were answered, want 99.5%%", r.hits.share())
	}
	if r.misses.answered < r.misses.sent {
		t.Errorf("%d of %d misses got no reply", r.misses.sent-r.misses.answered, r.misses.sent)
	}
	if r.settled == 0 {
		t.Errorf("memory is not back to normal: %d MiB, of them answers %d MiB", r.after.memory>>20, r.after.cached>>20)
	}
	slack := 900 * time.Millisecond // a busy machine; stub resolvers wait for 5 s
	switch {
	case *emulated:
		slack = replyWait()
	case *full:
		slack = 0
	}
	if r.misses.longest > 4*time.Second+slack {
		t.Errorf("a miss was answered after %v, want 4 s", r.misses.longest)
	}
	if r.back > time.Second+slack {
		t.Errorf("the first lookup succeeded %v after the upstream came back, want 1 s", r.back)
	}
}

// run runs the drill with one subject and fills r. The upstream fails for length.
func (d drill) run(t *testing.T, name string, length time.Duration, r *result) {
	t.Helper()
	n := lab.NewNetns(t, "node")
	n.AddAddrs(t, "lo", strings.TrimSuffix(upstream, ":53")+"/32")
	u := startUpstream(t, n, upstream)
	s := startSubject(t, n, name, d.limit, d.extra)
	defer s.Kill()
	r.before = s.usage(t)
	u.set(d.behaviour)
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	peak := make(chan int64, 1)
	defer func() { end(); <-peak }()
	go func() {
		defer close(peak)
		peak <- s.watchPeak(t, stop)
	}()
	hits := hitRate
	if *emulated {
		hits /= 10
	}
	r.misses, r.hits = d.load.run(t, n, length, hits)
	r.dropped = countDrops(t, n)
	end()
	r.peak, r.kills = <-peak, s.memory.Kills(t)
	u.set(answers)
	failed := missName(drillSeq.Load(), 0, 1)
	if d.behaviour == dropsAAAA {
		failed = "new." + failed // the name itself does not exist, which is no failure
	}
	r.back = untilBack(t, n, failed)
	r.after, r.settled = s.settle(t)
	r.kills = s.memory.Kills(t)
}

// drillLength is how long the upstream fails.
func drillLength() time.Duration {
	switch {
	case *length > 0:
		return *length
	case *full:
		return time.Minute
	}
	return 4 * time.Second
}

// watchPeak returns the most memory seen until stop is closed.
func (s *subject) watchPeak(t *testing.T, stop <-chan struct{}) (peak int64) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return peak
		case <-tick.C:
			peak = max(peak, s.anonymous(t))
		}
	}
}

// warm queries the names of the hits until all are answered and so cached.
func warm(t *testing.T, n *lab.Netns) {
	t.Helper()
	for seq := range 100 {
		if !succeeds(t, n, hitName(seq), lab.QueryTimeout) {
			t.Fatalf("%s is not answered", hitName(seq))
		}
	}
}

// untilBack is the time until two names are answered: a new one, and one that failed
// in the outage.
func untilBack(t *testing.T, n *lab.Netns, failed string) time.Duration {
	t.Helper()
	start := time.Now()
	succeeds(t, n, fmt.Sprintf("back%d.example", drillSeq.Add(1)), patience)
	succeeds(t, n, failed, patience)
	return time.Since(start)
}

// succeeds queries name every 20 ms until it is answered with NOERROR, and reports
// whether that was in time.
func succeeds(t *testing.T, n *lab.Netns, name string, within time.Duration) bool {
	t.Helper()
	c := newClient(t, n, 200, typeA, func(int) string { return name })
	start := time.Now()
	buf := make([]byte, 512)
	for id := uint16(1); time.Since(start) < within; id++ {
		_, _ = c.conn.Write(question(id, name, c.qtype))
		_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if k, err := c.conn.Read(buf); err == nil && k > headerLen && buf[3]&15 == 0 {
			_ = c.conn.Close()
			return true
		}
	}
	return false
}
