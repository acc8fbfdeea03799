package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Thresholds for entries in use, in per cent of the limit.
const (
	conntrackHigh = 80
	conntrackFull = 95
)

// examineConntrack checks the fill level of the table and the drops since before.
func (e *examination) examineConntrack(before uint64) {
	count, okCount := e.proc.number("sys/net/netfilter/nf_conntrack_count")
	limit, okLimit := e.proc.number("sys/net/netfilter/nf_conntrack_max")
	if !okCount || !okLimit || limit == 0 {
		return // connection tracking is not in use
	}
	share := count * 100 / limit
	what := fmt.Sprintf("%d of %d connection tracking entries are in use (%d %%)", count, limit, share)
	switch {
	case share >= conntrackFull:
		e.findAs(nodeView, "conntrack-full", Fault, what, "")
	case share >= conntrackHigh:
		e.find(nodeView, "conntrack-full", what)
	}
	after := e.proc.conntrackDrops()
	if after > before {
		e.find(nodeView, "conntrack-drops", fmt.Sprintf("connection tracking dropped %d packets while doctor ran, %d since boot", after-before, after))
	} else if after > 0 {
		e.fact(nodeView, fmt.Sprintf("connection tracking dropped %d packets since boot, none while doctor ran", after))
	}
}

// number reads a file with one decimal number.
func (proc procfs) number(path string) (uint64, bool) {
	b, err := os.ReadFile(filepath.Join(string(proc), path))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// conntrackDrops returns the packets that connection tracking has dropped on all
// CPUs: insert_failed, drop and early_drop.
func (proc procfs) conntrackDrops() uint64 {
	b, err := os.ReadFile(filepath.Join(string(proc), "net/stat/nf_conntrack"))
	if err != nil {
		return 0
	}
	var sum uint64
	var columns []int
	for i, line := range strings.Split(string(b), "\n") {
		fields := strings.Fields(line)
		if i == 0 {
			for _, name := range []string{"insert_failed", "drop", "early_drop"} {
				columns = append(columns, slices.Index(fields, name))
			}
			continue
		}
		for _, c := range columns {
			if c >= 0 && c < len(fields) {
				n, _ := strconv.ParseUint(fields[c], 16, 64) // 0 if a kernel has another format
				sum += n
			}
		}
	}
	return sum
}
