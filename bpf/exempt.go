package bpf

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// exemptSelf keeps this process's own queries from being redirected: those from its
// network namespace (the host's in a DaemonSet) while it is alive, and those from
// its cgroup always. It removes the entries of a predecessor.
func (r *Redirect) exemptSelf() error {
	cookie, err := netnsCookie()
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) { // before Linux 5.14
		return err
	}
	if err == nil {
		if err := r.objs.Exempt.Put(cookie, uint8(1)); err != nil {
			return explain("exempt own network namespace", err)
		}
	}
	if err := r.removeOtherExempt(cookie); err != nil {
		return err
	}
	self, err := currentCgroupID()
	if err != nil {
		return err
	}
	above, err := r.isAbove(self)
	if err != nil {
		return err
	}
	if above { // the programs do not run for this process
		self = 0
	} else if err := r.objs.OptedOut.Put(self, optedOutAsSelf); err != nil {
		return explain("opt out own cgroup", err)
	}
	if err := r.removeOtherSelf(self); err != nil {
		return err
	}
	return r.updateOptedOut()
}

func (r *Redirect) removeOtherExempt(keep uint64) error {
	var cookie uint64
	var one uint8
	var stale []uint64
	iter := r.objs.Exempt.Iterate()
	for iter.Next(&cookie, &one) {
		if cookie != keep {
			stale = append(stale, cookie)
		}
	}
	if err := iter.Err(); err != nil {
		return explain("list exempt network namespaces", err)
	}
	for _, cookie := range stale {
		if err := r.objs.Exempt.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain("remove exempt network namespace", err)
		}
	}
	return nil
}

func (r *Redirect) removeOtherSelf(keep uint64) error {
	ids, err := r.optedOut()
	if err != nil {
		return err
	}
	for id, by := range ids {
		if by != optedOutAsSelf || id == keep {
			continue
		}
		if err := r.objs.OptedOut.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explain("remove a predecessor's cgroup", err)
		}
	}
	return nil
}
