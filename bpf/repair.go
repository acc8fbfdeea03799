package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"
)

// Repair attaches the programs again after the cgroup was removed, which severs the
// links, and created again. It does nothing if a successor or a teardown changed the
// pins.
func (r *Redirect) Repair() (repaired bool, err error) {
	severed, err := r.severed()
	if !severed || err != nil {
		return false, err
	}
	return true, r.Attach()
}

func (r *Redirect) severed() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false, errClosed
	}
	if others, err := r.otherVersions(); err != nil || len(others) > 0 {
		return false, err
	}
	if _, err := cgroupID(r.cgroup); err != nil {
		return false, fmt.Errorf("redirect: repair: %w", err)
	}
	for _, h := range hooks() {
		l, err := link.LoadPinnedLink(r.linkPath(h), nil)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, explain("redirect: load pinned link", err)
		}
		severed, err := isLinkedTo(l, 0)
		_ = l.Close()
		if severed || err != nil {
			return severed, err
		}
	}
	return false, nil
}
