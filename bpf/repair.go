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
	if others, err := otherVersions(r.pinDir, r.dir); err != nil || len(others) > 0 {
		return false, err
	}
	severed, err := r.links.severed()
	if err != nil {
		return false, fmt.Errorf("redirect: repair: %w", err)
	}
	return severed, nil
}

// severed reports whether a pinned link is severed while the cgroup exists.
func (l *links) severed() (bool, error) {
	if _, err := cgroupID(l.cgroup); err != nil {
		return false, err
	}
	for _, h := range hooks() {
		pinned, err := link.LoadPinnedLink(l.path(h), nil)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, explain("load pinned link", err)
		}
		severed, err := isLinkedTo(pinned, 0)
		_ = pinned.Close()
		if severed || err != nil {
			return severed, err
		}
	}
	return false, nil
}
