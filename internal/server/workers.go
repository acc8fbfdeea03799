package server

import "sync"

// maxIdle is the number of idle goroutines that a workerPool keeps.
const maxIdle = 256

// workerPool runs each task at once in a separate goroutine. It reuses goroutines,
// because growing the stack of a new one costs more than the rest of a miss.
type workerPool struct {
	mu     sync.Mutex
	idle   []chan func() // the last used on top
	closed bool
	wg     sync.WaitGroup
}

// do runs task in a goroutine.
func (w *workerPool) do(task func()) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		tasks := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		tasks <- task
		return
	}
	w.wg.Add(1)
	w.mu.Unlock()
	go w.run(task)
}

// run runs task and then the tasks that do hands to it.
func (w *workerPool) run(task func()) {
	defer w.wg.Done()
	tasks := make(chan func(), 1)
	for task != nil {
		task()
		if !w.park(tasks) {
			return
		}
		task = <-tasks
	}
}

// park adds the goroutine that reads tasks to the idle ones. It returns false
// if that goroutine must end.
func (w *workerPool) park(tasks chan func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.idle) >= maxIdle {
		return false
	}
	w.idle = append(w.idle, tasks)
	return true
}

// close ends the idle goroutines and waits for the others. do works even after
// close.
func (w *workerPool) close() {
	w.mu.Lock()
	w.closed = true
	for _, tasks := range w.idle {
		tasks <- nil
	}
	w.idle = nil
	w.mu.Unlock()
	w.wg.Wait()
}
