package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// step is done at the start and undone at the stop. Either function may be nil.
type step struct {
	name string
	up   func(context.Context) error
	down func(context.Context) error
}

// start takes the steps in order. If one fails, start undoes it and those before it
// in reverse and returns all errors. So down has to work after up has failed
// half-way.
func start(ctx context.Context, steps []step) error {
	for i, s := range steps {
		if s.up == nil {
			continue
		}
		if err := s.up(ctx); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), stop(context.WithoutCancel(ctx), steps[:i+1]))
		}
	}
	return nil
}

// stop undoes all steps in reverse, even if some fail.
func stop(ctx context.Context, steps []step) error {
	var errs []error
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].down == nil {
			continue
		}
		if err := steps[i].down(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", steps[i].name, err))
		}
	}
	return errors.Join(errs...)
}

// background runs f in a goroutine, with a context that outlives ctx. stop cancels that
// context and waits for f.
func background(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	return func() { cancel(); wg.Wait() }
}
