package netsetup

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetNS runs f on a thread in the network namespace fd refers to, 0 being
// the caller's own. f must not start goroutines that depend on it.
func inNetNS(fd int, f func() error) error {
	if fd == 0 {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
