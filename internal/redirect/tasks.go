package redirect

import (
	"context"
	"sync"
	"time"

	"github.com/nodens-dns/nodens/internal/tick"
)

// tasks are goroutines that are stopped together.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// newTasks returns tasks that outlive ctx and have its values.
func newTasks(ctx context.Context) *tasks {
	t := new(tasks)
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return t
}

// run starts f. Its context is done when the tasks are stopped.
func (t *tasks) run(f func(context.Context)) { t.wg.Go(func() { f(t.ctx) }) }

// stop cancels the tasks and waits for them.
func (t *tasks) stop() {
	t.cancel()
	t.wg.Wait()
}

// pause waits for d. It returns false if ctx is done first.
func pause(ctx context.Context, d time.Duration) bool {
	t := tick.New()
	defer t.Stop()
	t.Reset(d)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
