package bpf

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// exemptions are the network namespaces and cgroups that are not redirected. The
// owner holds the lock of its Redirect.
type exemptions struct {
	cgroup string // directory of the programs' cgroup
	maps   *redirectMaps
}

// addSelf keeps this process's own queries from being redirected: those from its
// network namespace (the host's in a DaemonSet) while it is alive, and those from
// its cgroup always. It removes the entries of a predecessor.
func (e *exemptions) addSelf() error {
	cookie, err := netnsCookie()
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		return err
	}
	if err == nil {
		if err := e.maps.Exempt.Put(cookie, uint8(1)); err != nil {
			return explain("exempt own network namespace", err)
		}
	}
	if err := e.removeOtherExempt(cookie); err != nil {
		return err
	}
	self, err := currentCgroupID()
	if err != nil {
		return err
	}
	above, err := isAbove(self, e.cgroup)
	if err != nil {
		return err
	}
	if above { // the programs do not run for this process
		self = 0
	} else if err := e.maps.OptedOut.Put(self, optedOutAsSelf); err != nil {
		return explain("opt out own cgroup", err)
	}
	if err := e.removeOtherSelf(self); err != nil {
		return err
	}
	return e.updateSettings()
}

func (e *exemptions) removeOtherExempt(keep uint64) error {
	var cookie uint64
	var one uint8
	var stale []uint64
	iter := e.maps.Exempt.Iterate()
	for iter.Next(&cookie, &one) {
		if cookie != keep {
			stale = append(stale, cookie)
		}
	}
	if err := iter.Err(); err != nil {
		return explain("list exempt network namespaces", err)
	}
	for _, cookie := range stale {
		if err := e.maps.Exempt.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain("remove exempt network namespace", err)
		}
	}
	return nil
}

func (e *exemptions) removeOtherSelf(keep uint64) error {
	ids, err := e.optedOut()
	if err != nil {
		return err
	}
	for id, by := range ids {
		if by != optedOutAsSelf || id == keep {
			continue
		}
		if err := e.maps.OptedOut.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain("remove a predecessor's cgroup", err)
		}
	}
	return nil
}
