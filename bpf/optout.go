package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Values in the map opted_out: why the cgroup is in it.
const (
	optedOutByCaller uint8 = 1
	optedOutAsSelf   uint8 = 2
)

// OptOut stops redirection for a cgroup and all cgroups below it. The id is the
// inode number of the cgroup's directory. The opt-out outlives the process and ends
// with OptIn.
func (r *Redirect) OptOut(cgroupID uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if err := r.exempts.maps.OptedOut.Put(cgroupID, optedOutByCaller); err != nil {
		return explain("redirect: opt out", err)
	}
	return r.exempts.updateSettings()
}

// OptIn reverts OptOut. An id that has not opted out is no error.
func (r *Redirect) OptIn(cgroupID uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	err := r.exempts.maps.OptedOut.Delete(cgroupID)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return explain("redirect: opt in", err)
	}
	return r.exempts.updateSettings()
}

// OptedOut returns the ids that this process and its predecessors opted out.
func (r *Redirect) OptedOut() ([]uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	all, err := r.exempts.optedOut()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	var ids []uint64
	for id, by := range all {
		if by == optedOutByCaller {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (e *exemptions) optedOut() (map[uint64]uint8, error) {
	ids := map[uint64]uint8{}
	var id uint64
	var by uint8
	iter := e.maps.OptedOut.Iterate()
	for iter.Next(&id, &by) {
		ids[id] = by
	}
	if err := iter.Err(); err != nil {
		return nil, explain("list opted-out cgroups", err)
	}
	return ids, nil
}

// updateSettings changes only one field of the settings: the others may belong to
// another process.
func (e *exemptions) updateSettings() error {
	ids, err := e.optedOut()
	if err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	var set redirectSettings
	if err := e.maps.Config.Lookup(uint32(0), &set); err != nil {
		return explain("redirect: look up settings", err)
	}
	set.OptedOut = min(uint32(len(ids)), 1)
	if err := e.maps.Config.Put(uint32(0), &set); err != nil {
		return explain("redirect: put settings", err)
	}
	return nil
}
