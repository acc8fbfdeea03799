package upstream

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Reply times are counted in buckets of a quarter octave, from 2^rttFirst ns
// (33 µs) to 2^33 ns (8.6 s).
const (
	rttFirst   = 15
	rttBuckets = (33 - rttFirst) * 4
	rttWindow  = 1024 // samples after which the older ones count half
	rttRecount = 16   // samples between two looks at the quantile
)

// rtt keeps the reply times of one server: a smoothed mean (RFC 6298 section
// 2) and the 95th percentile of the recent ones. It is safe for concurrent use.
type rtt struct {
	p95 atomic.Int64 // nanoseconds; 0: too few samples

	mu       sync.Mutex
	counts   [rttBuckets]uint16
	total    int
	since    int // samples since the last recount
	smoothed time.Duration
}

// observe adds the time between a query and its own reply and returns the
// smoothed mean.
func (r *rtt) observe(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total == 0 {
		r.smoothed = d
	}
	r.smoothed += (d - r.smoothed) / 8
	r.counts[rttBucket(d)]++
	r.total++
	if r.since++; r.since < rttRecount {
		return r.smoothed
	}
	r.since = 0
	r.p95.Store(int64(r.quantile()))
	if r.total >= rttWindow {
		r.total = 0
		for i := range r.counts {
			r.counts[i] /= 2
			r.total += int(r.counts[i])
		}
	}
	return r.smoothed
}

// quantile returns the upper edge of the bucket of the 95th percentile; r.mu
// is held.
func (r *rtt) quantile() time.Duration {
	above := r.total / 20
	for i := rttBuckets - 1; i > 0; i-- {
		if above -= int(r.counts[i]); above < 0 {
			return rttEdge(i + 1)
		}
	}
	return rttEdge(1)
}

func rttBucket(d time.Duration) int {
	if d < 1<<rttFirst {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1
	return min((octave-rttFirst)*4+int(d>>(octave-2))&3, rttBuckets-1)
}

// rttEdge is the lower edge of bucket i.
func rttEdge(i int) time.Duration {
	return time.Duration(4+i%4) << (rttFirst + i/4 - 2)
}
