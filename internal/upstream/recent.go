package upstream

import "time"

const halfMinute = 30 * time.Second

// recentTimes counts the reply times of the current half minute and of the two before.
type recentTimes struct {
	counts [3][rttBuckets]uint32
	now    int
	since  time.Time // when counts[now] began
}

// rotate starts a new half minute if the current one has ended.
func (r *recentTimes) rotate(now time.Time) {
	for range len(r.counts) {
		if now.Sub(r.since) < halfMinute {
			return
		}
		r.now, r.since = (r.now+1)%len(r.counts), r.since.Add(halfMinute)
		r.counts[r.now] = [rttBuckets]uint32{}
	}
	r.since = now
}

// ReplyTimes are quantiles of the last minute, each within 13% of the exact one. They are
// 0 without replies.
type ReplyTimes struct {
	Count         uint64
	P50, P90, P99 time.Duration
}

// quantiles returns the reply times of the last minute.
func (r *recentTimes) quantiles(now time.Time) (q ReplyTimes) {
	r.rotate(now)
	var sum [rttBuckets]uint64
	for i := range r.counts {
		for b, n := range r.counts[i] {
			sum[b] += uint64(n)
			q.Count += uint64(n)
		}
	}
	at := func(part float64) time.Duration {
		left := int64(part * float64(q.Count))
		for b, n := range sum {
			if left -= int64(n); left < 0 {
				return (rttEdge(b) + rttEdge(b+1)) / 2
			}
		}
		return 0
	}
	q.P50, q.P90, q.P99 = at(0.5), at(0.9), at(0.99)
	return q
}
