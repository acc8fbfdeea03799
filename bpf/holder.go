package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
)

// StaleHeartbeat is the time without a heartbeat after which a process counts as
// frozen: another one may take its place, although it still exists. A supervisor
// kills its worker after the same time.
const StaleHeartbeat = 3 * time.Second

// holder is the process that holds a canary.
type holder struct {
	cookie uint64        // of its canary; 0: there is none
	age    time.Duration // of its heartbeat
}

// lives reports whether the process exists and is not frozen.
func (h holder) lives() bool { return h.cookie != 0 && h.age <= StaleHeartbeat }

// pinnedHolder reads the maps that a version pinned in dir. Without pins there is no
// holder.
func pinnedHolder(dir string) (h holder, err error) {
	if h.cookie, err = pinnedCookie(dir); err != nil || h.cookie == 0 {
		return holder{}, err
	}
	err = withMap(dir, redirectMapHeartbeat, func(m *ebpf.Map) error {
		var raw [8]byte
		err := m.Lookup(uint32(0), &raw)
		if err == nil {
			h.age, err = heartbeatAge(binary.NativeEndian.Uint64(raw[:]))
		}
		return err
	})
	return h, err
}

func pinnedCookie(dir string) (uint64, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(dir, redirectMapCanary), nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, explain("load pinned canary", err)
	}
	defer m.Close()
	return canaryCookie(m)
}

// InUse reports whether a process of any version redirects sockets by what is pinned
// below pinDir, waits to do so, or hangs.
func InUse(pinDir string) (bool, error) {
	defer lockPins(pinDir)()
	return isAnyUsed(pinDir)
}

// isAnyUsed needs the lock of the pins.
func isAnyUsed(pinDir string) (bool, error) {
	dirs, err := versions(pinDir)
	if err != nil {
		return false, fmt.Errorf("redirect: %w", err)
	}
	for _, dir := range dirs {
		if used, err := isUsed(dir); used || err != nil {
			return used, err
		}
	}
	return false, nil
}
