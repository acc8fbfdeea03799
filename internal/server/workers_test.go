package server

import (
	"sync"
	"testing"
	"testing/synctest"
)

// TestWorkersNeverWait runs more tasks at once than a workerPool keeps goroutines,
// and checks that no goroutine remains.
func TestWorkersNeverWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = maxIdle + 50
		var w workerPool
		var done sync.WaitGroup
		release := make(chan struct{})
		task := func() { <-release; done.Done() }
		for round := range 3 {
			done.Add(n)
			for range n {
				w.do(task)
			}
			close(release)
			done.Wait()
			synctest.Wait()
			if len(w.idle) != maxIdle {
				t.Errorf("round %d: %d idle, want %d", round, len(w.idle), maxIdle)
			}
			release = make(chan struct{})
		}
		w.close()
		done.Add(1)
		close(release)
		w.do(task) // close does not refuse tasks
		done.Wait()
	}) // synctest waits for every goroutine
}
