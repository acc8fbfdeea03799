package redirect

import (
	"context"
	"errors"
	"time"
)

// reachFollower sends lookups to the fallbacks while pods do not reach the targets. One
// goroutine uses it.
type reachFollower struct {
	status   *status
	withdraw func() error
	resume   func() (resumed bool, err error)
	// keep tells the kernel that this process still checks the fallbacks.
	keep func() error
	free func() // closes pods' sockets that are connected to a target

	lost   bool
	reason string // why the last check failed
}

// followReach checks at intervals until ctx is done.
func (s *session) followReach(ctx context.Context) {
	f := reachFollower{
		status: s.status, withdraw: s.kernel.Withdraw, resume: s.kernel.Resume, keep: s.kernel.KeepFallbacks,
		free: func() {
			for _, svc := range s.plan.Services {
				s.sockets.free(svc.Target, "pods do not reach the target")
			}
		},
	}
	for pause(ctx, f.interval()) {
		err := s.reach.check(ctx)
		if ctx.Err() != nil {
			return
		}
		f.step(err)
	}
}

func (f *reachFollower) interval() time.Duration {
	if f.lost {
		return lostInterval
	}
	return reachInterval
}

// step acts on the result of a check.
func (f *reachFollower) step(result error) {
	unreachable := errors.Is(result, errUnreachable)
	if result != nil && !unreachable {
		f.reason = f.status.warnOnce(f.reason, "cannot check whether pods reach the target", result)
	} else {
		f.reason = ""
	}
	var err error
	switch {
	case unreachable && !f.lost:
		f.lost = true
		f.status.unreachable(result)
		err = f.withdraw()
		f.free() // after new lookups go to the fallbacks
	case unreachable:
		err = f.keep()
	case f.lost: // or nodens cannot enter pods, and netfilter no longer drops
		var resumed bool
		if resumed, err = f.resume(); resumed {
			f.lost = false
			f.status.reachable()
		} else {
			err = errors.Join(err, f.keep())
		}
	default:
		return
	}
	if err != nil {
		f.status.fail(err)
	}
}
