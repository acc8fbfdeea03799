package daemon

import (
	"context"
	"errors"
	"fmt"
)

// step is one thing that is done at the start and undone at the end. Either
// function may be nil.
type step struct {
	name string
	up   func(context.Context) error
	down func(context.Context) error
}

// climb takes the steps in order. If one fails, it and those before it are
// undone, in reverse, and the errors of both are returned: down has to cope
// with an up that failed half-way.
func climb(ctx context.Context, steps []step) error {
	for i, s := range steps {
		if s.up == nil {
			continue
		}
		if err := s.up(ctx); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", s.name, err), descend(context.WithoutCancel(ctx), steps[:i+1]))
		}
	}
	return nil
}

// descend undoes the steps in reverse, all of them whatever fails.
func descend(ctx context.Context, steps []step) error {
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
