package supervise

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Values of oom_score_adj, see proc_pid_oom_score_adj(5).
const (
	oomNever = -1000 // not even with memory.oom.group of its cgroup
	oomMost  = 1000
	// oomMargin is how much likelier a victim the worker is, in thousandths of
	// the memory, where the supervisor may not exempt itself.
	oomMargin = 50
)

// oomScore is the value for workers.
type oomScore struct{ worker int }

// shieldFromOOM makes the kernel choose the worker and not the caller. Exempting
// the caller takes CAP_SYS_RESOURCE; without it, the worker is made likelier.
func shieldFromOOM() (oomScore, error) {
	const self = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(self)
	if err != nil {
		return oomScore{}, fmt.Errorf("read OOM score: %w", err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return oomScore{}, fmt.Errorf("%s: %w", self, err)
	}
	err = writeOOMScore("self", oomNever)
	if errors.Is(err, os.ErrPermission) {
		return oomScore{min(own+oomMargin, oomMost)}, nil
	}
	return oomScore{own}, err
}

// apply gives a worker its score.
func (o oomScore) apply(pid int) error { return writeOOMScore(strconv.Itoa(pid), o.worker) }

func writeOOMScore(process string, score int) error {
	err := os.WriteFile("/proc/"+process+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
	if err != nil {
		return fmt.Errorf("set OOM score: %w", err)
	}
	return nil
}
