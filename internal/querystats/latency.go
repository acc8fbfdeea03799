package querystats

import "time"

// Durations are counted in buckets of an eighth octave, from 2^firstOctave ns (1 µs) to
// 2^34 ns (17 s). Shorter durations are in the first bucket, longer ones in the last
// one.
const (
	firstOctave = 10
	buckets     = (34 - firstOctave) * 8
)

// middle returns the middle of a bucket. It differs by at most 6.25% from every duration
// in the bucket.
func middle(bucket int) time.Duration {
	return time.Duration(17+2*(bucket%8)) << (firstOctave + bucket/8 - 4)
}

// latencies has the durations of the current half minute and of the two before.
type latencies struct {
	slots [3]struct{ hits, misses [maxZones][buckets]uint32 }
	now   int
	since time.Time // when slots[now] began
}

// Quantiles are durations of the last minute, each within 6.25% of the exact one.
type Quantiles struct {
	Count         uint64
	P50, P90, P99 time.Duration
}

// Latency returns the latencies of replies from the cache and of others in a zone.
func (s *Stats) Latency(z Zone) (hit, miss Quantiles) {
	var hits, misses [buckets]uint64
	s.mu.Lock()
	for i := range s.times.slots {
		slot := &s.times.slots[i]
		for b := range buckets {
			hits[b] += uint64(slot.hits[z][b])
			misses[b] += uint64(slot.misses[z][b])
		}
	}
	s.mu.Unlock()
	return quantiles(&hits), quantiles(&misses)
}

func quantiles(counts *[buckets]uint64) (q Quantiles) {
	for _, n := range counts {
		q.Count += n
	}
	at := func(part float64) time.Duration {
		left := int64(part * float64(q.Count))
		for b, n := range counts {
			if left -= int64(n); left < 0 {
				return middle(b)
			}
		}
		return 0
	}
	q.P50, q.P90, q.P99 = at(0.5), at(0.9), at(0.99)
	return q
}
