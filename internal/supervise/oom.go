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
	oomNever = -1000 // also with memory.oom.group of its cgroup
	oomMax   = 1000
	// oomMargin is added to the worker's score if the supervisor may not exempt
	// itself, in thousandths of the memory.
	oomMargin = 50
)

// oomScore is the score for workers.
type oomScore struct{ worker int }

// protectFromOOM makes the kernel kill the worker, not the caller. Exempting the
// caller needs CAP_SYS_RESOURCE; without it, the worker gets a higher score.
func protectFromOOM() (oomScore, error) {
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
		return oomScore{min(own+oomMargin, oomMax)}, nil
	}
	return oomScore{own}, err
}

// apply sets a worker's score.
func (o oomScore) apply(pid int) error { return writeOOMScore(strconv.Itoa(pid), o.worker) }

func writeOOMScore(process string, score int) error {
	err := os.WriteFile("/proc/"+process+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
	if err != nil {
		return fmt.Errorf("set OOM score: %w", err)
	}
	return nil
}
