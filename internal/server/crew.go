package server

import "sync"

// crewIdle is how many goroutines are kept for the next misses.
const crewIdle = 256

// crew is the goroutines that resolve misses. They are used again, because the
// stack of a new one has to grow, which costs more than all the rest of it. A
// miss never waits for one.
type crew struct {
	work func(*job)

	mu     sync.Mutex
	idle   []chan *job // the last used on top
	closed bool
	wg     sync.WaitGroup
}

// do has j worked on, at once.
func (c *crew) do(j *job) {
	c.mu.Lock()
	if last := len(c.idle) - 1; last >= 0 {
		next := c.idle[last]
		c.idle = c.idle[:last]
		c.mu.Unlock()
		next <- j
		return
	}
	c.wg.Add(1)
	c.mu.Unlock()
	go c.serve(j)
}

// serve works on j and then on what it is handed.
func (c *crew) serve(j *job) {
	defer c.wg.Done()
	more := make(chan *job, 1)
	for j != nil {
		c.work(j)
		if !c.rest(more) {
			return
		}
		j = <-more
	}
}

// rest makes the goroutine behind more idle; false if it is not wanted any more.
func (c *crew) rest(more chan *job) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= crewIdle {
		return false
	}
	c.idle = append(c.idle, more)
	return true
}

// close dismisses the goroutines and waits for those at work. do still works
// afterwards.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	for _, more := range c.idle {
		more <- nil
	}
	c.idle = nil
	c.mu.Unlock()
	c.wg.Wait()
}
