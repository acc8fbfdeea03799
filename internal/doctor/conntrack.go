package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Shares of the connection tracking table that are too much.
const (
	conntrackHigh = 80 // per cent
	conntrackFull = 95
)

// examineConntrack looks at the table and at what was dropped since before.
func (e *examination) examineConntrack(before uint64) {
	count, okCount := e.procNumber("sys/net/netfilter/nf_conntrack_count")
	limit, okLimit := e.procNumber("sys/net/netfilter/nf_conntrack_max")
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
	after := e.conntrackDrops()
	if after > before {
		e.find(nodeView, "conntrack-drops", fmt.Sprintf("connection tracking dropped %d packets while this ran, %d since boot", after-before, after))
	} else if after > 0 {
		e.fact(nodeView, fmt.Sprintf("connection tracking dropped %d packets since boot, none while this ran", after))
	}
}

func (e *examination) procNumber(path string) (uint64, bool) {
	b, err := os.ReadFile(filepath.Join(e.Proc, path))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// conntrackDrops adds up, over all processors, the packets that connection
// tracking dropped: insert_failed, drop and early_drop.
func (e *examination) conntrackDrops() uint64 {
	b, err := os.ReadFile(filepath.Join(e.Proc, "net/stat/nf_conntrack"))
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
				n, _ := strconv.ParseUint(fields[c], 16, 64) // not a number: a kernel that we do not know
				sum += n
			}
		}
	}
	return sum
}
