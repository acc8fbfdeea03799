package bpf

import "sync/atomic"

// rcodeNXDomain is the rcode of a name that does not exist (RFC 1035 section 4.1.1).
const rcodeNXDomain = 3

// Report reports the answers since its last call, see FastpathConfig.
func (f *Fastpath) Report() {
	f.AnswerTable.Report()
	f.LeaseTable.Report()
}

// Report reports the hits of all answers, see FastpathConfig.Answered. It locks one part
// of the table at a time.
func (t *AnswerTable) Report() {
	const part = 256 // buckets
	for from := 0; from < len(t.buckets); from += part {
		t.mu.Lock()
		t.reportSome(t.buckets[from:min(from+part, len(t.buckets))])
		t.mu.Unlock()
	}
}

// reportSome reports the hits of the answers in some buckets. t.mu is held.
func (t *AnswerTable) reportSome(buckets []fastBucket) {
	for i := range buckets {
		for _, way := range buckets[i].Ways {
			if way != 0 {
				hits := atomic.LoadUint32(&t.head(uint32(way)).Hits)
				t.report(uint32(way), hits, hits)
			}
		}
	}
}

// report reports those of hits of a cell that it has not reported yet. now is the
// cell's number of hits after the call. t.mu is held.
func (t *AnswerTable) report(number, hits, now uint32) {
	i, large := number&^uint32(fastLimitsLARGE_CELL), number&uint32(fastLimitsLARGE_CELL) != 0
	var reported *uint32
	var name []byte // in the cell; the BPF program does not write it
	if large {
		reported, name = &t.large.reported[i], bytesOf(&t.large.cells[i].Name)
	} else {
		reported, name = &t.small.reported[i], bytesOf(&t.small.cells[i].Name)
	}
	before := *reported
	*reported = now
	if h := t.head(number); t.answered != nil && hits > before {
		t.answered(int(h.List), name[:h.Key.NameLen], h.Rcode == rcodeNXDomain, hits-before)
	}
}
