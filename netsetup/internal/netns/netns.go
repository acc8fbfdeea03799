// Package netns runs code in another network namespace.
package netns

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs f on a thread in the network namespace that fd refers to; 0 is the
// caller's own. f must not start goroutines that depend on the namespace.
func Do(fd int, f func() error) error {
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
