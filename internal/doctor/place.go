package doctor

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// nodeView is the name of the node's own view.
const nodeView = "node"

// place is where questions are asked from.
type place struct {
	view  string
	netns *os.File // nil: the process's own
}

// Close closes the namespace's descriptor.
func (p place) Close() error {
	if p.netns == nil {
		return nil
	}
	return p.netns.Close()
}

// do calls f on a thread in the place's network namespace. Sockets that f opens
// stay there; goroutines that it starts do not.
func (p place) do(f func() error) error {
	if p.netns == nil {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(p.netns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		result <- f()
	}()
	return <-result
}
