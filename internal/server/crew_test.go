package server

import (
	"sync"
	"testing"
	"testing/synctest"
)

// TestCrewNeverWaits has more jobs under way than goroutines are kept, and
// nothing left in the end.
func TestCrewNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = crewIdle + 50
		var c crew
		var done sync.WaitGroup
		release := make(chan struct{})
		c.work = func(*job) { <-release; done.Done() }
		for round := range 3 {
			done.Add(n)
			for range n {
				c.do(new(job))
			}
			close(release)
			done.Wait()
			synctest.Wait()
			if len(c.idle) != crewIdle {
				t.Errorf("round %d: %d idle, want %d", round, len(c.idle), crewIdle)
			}
			release = make(chan struct{})
		}
		c.close()
		done.Add(1)
		close(release)
		c.do(new(job)) // late, but not lost
		done.Wait()
	}) // which waits for every goroutine
}
