package bpf

import (
	"fmt"
	"unsafe"
)

// FastCounts are what the fast path has counted for one zone. Sizes are the buckets
// of the metrics' histograms.
type FastCounts struct {
	Requests   [2][fastLimitsFAST_TYPES]uint64 // IPv4, IPv6
	Rcodes     [16]uint64
	Lookups    [2]uint64 // success, denial
	Judged     [fastLimitsFAST_JUDGED]uint64
	DNSSECOK   uint64
	QuerySizes [8]uint64
	QueryBytes uint64
	ReplySizes [8]uint64
	ReplyBytes uint64
}

// Both consist of 64-bit counters in the same order, or this does not compile.
const _ = -(unsafe.Sizeof(FastCounts{}) ^ unsafe.Sizeof(fastZoneStats{}))

// Counts returns the counters of a zone, summed over the CPUs.
func (f *Fastpath) Counts(zone int) (sum FastCounts, err error) {
	var perCPU []fastZoneStats
	if err := f.objs.Stats.Lookup(uint32(zone), &perCPU); err != nil {
		return sum, fmt.Errorf("fast path: read counters: %w", err)
	}
	for i := range perCPU {
		sum.Add((*FastCounts)(unsafe.Pointer(&perCPU[i])))
	}
	return sum, nil
}

// Add adds the counters of o.
func (c *FastCounts) Add(o *FastCounts) {
	const n = unsafe.Sizeof(FastCounts{}) / 8
	to := (*[n]uint64)(unsafe.Pointer(c))
	for i, v := range (*[n]uint64)(unsafe.Pointer(o)) {
		to[i] += v
	}
}

// PassReasons are the labels of the reasons why the program does not answer DNS queries,
// in the order of Passed.
func PassReasons() []string {
	return []string{
		fastPassReasonPASS_NO_LEASE - 1:  "no_lease",
		fastPassReasonPASS_UNUSUAL - 1:   "unusual",
		fastPassReasonPASS_NOT_FOUND - 1: "not_found",
		fastPassReasonPASS_EXPIRED - 1:   "expired",
		fastPassReasonPASS_REFRESH - 1:   "refresh",
		fastPassReasonPASS_TOO_LARGE - 1: "too_large",
		fastPassReasonPASS_CHANGED - 1:   "changed",
		fastPassReasonPASS_FAILED - 1:    "failed",
		fastPassReasonPASS_LOST - 1:      "lost",
	}
}

// Passed returns how many DNS queries the program has not answered, by reason. It has
// passed all but the lost ones to the daemon.
func (f *Fastpath) Passed() ([]uint64, error) {
	n := make([]uint64, fastPassReasonFAST_PASS_COUNT-1)
	for i := range n {
		var perCPU []uint64
		if err := f.objs.Passed.Lookup(uint32(i+1), &perCPU); err != nil {
			return nil, fmt.Errorf("fast path: read counters: %w", err)
		}
		for _, v := range perCPU {
			n[i] += v
		}
	}
	return n, nil
}
