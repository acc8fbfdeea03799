package supervise

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Report is the content of a heartbeat. Each is complete, since heartbeats may be
// lost.
type Report struct {
	// Cgroup is the directory of the cgroup that contains the clients. Empty: there
	// are no clients to disconnect.
	Cgroup string `json:"cgroup,omitempty"`
	// Targets are the addresses that the clients' sockets are connected to.
	Targets []netip.AddrPort `json:"targets,omitempty"`
	// Timeout is the time after a heartbeat from which the kernel redirects new
	// lookups elsewhere. 0: it does not.
	Timeout time.Duration `json:"silence,omitempty"`
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
	return a.Cgroup == b.Cgroup && a.Timeout == b.Timeout && slices.Equal(a.Targets, b.Targets)
}
