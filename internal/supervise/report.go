package supervise

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Report is what the worker says with every beat. It is complete: beats may be
// lost.
type Report struct {
	// Cgroup is the directory of the cgroup below which the clients run. Empty:
	// there are none to be freed.
	Cgroup string `json:"cgroup,omitempty"`
	// Targets are what the clients' sockets are connected to.
	Targets []netip.AddrPort `json:"targets,omitempty"`
	// Silence is how long after a beat the kernel sends new look-ups elsewhere.
	Silence time.Duration `json:"silence,omitempty"`
}

// maxReport is the size in bytes of the longest message.
const maxReport = 32 << 10

func (r Report) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxReport {
		err = fmt.Errorf("%d bytes: at most %d", len(text), maxReport)
	}
	return text, err
}

func decodeReport(text []byte) (r Report, err error) {
	err = json.Unmarshal(text, &r)
	return r, err
}

func equal(a, b Report) bool {
	return a.Cgroup == b.Cgroup && a.Silence == b.Silence && slices.Equal(a.Targets, b.Targets)
}
