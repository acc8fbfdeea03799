package doctor

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// nodeView names the view of the node.
const nodeView = "node"

// place is the network namespace that queries are sent from.
type place struct {
	view  string
	netns *os.File // nil: that of this process
}

// Close closes the namespace's descriptor.
func (p place) Close() error {
	if p.netns == nil {
		return nil
	}
	return p.netns.Close()
}

// do calls f on a thread in the network namespace. Sockets that f opens stay in
// it; goroutines that f starts are not in it.
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
