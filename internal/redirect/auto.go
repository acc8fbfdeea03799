package redirect

import (
	"context"
	"time"

	"github.com/nodens-dns/nodens/bpf"
)

// How often mode auto checks whether pods reach the local addresses.
const (
	checkSoon        = 3 * time.Second  // while there is no pod, or to confirm a failure
	checkLater       = 30 * time.Second // while pods reach them
	failuresToEngage = 2                // in a row: a new pod may not have its network yet
)

// reachability is the check of mode auto.
type reachability struct {
	probe  podProbe
	status *status
	last   state // that was logged; empty: none
}

// waitUnreachable returns true when pods do not reach the local addresses, and false
// when ctx is done. While they do, it continues to check, because a CNI upgrade may
// change that.
func (r *reachability) waitUnreachable(ctx context.Context) bool {
	failures := 0
	for {
		verdict, err := r.probe.round(ctx)
		if ctx.Err() != nil {
			return false
		}
		wait := checkSoon
		switch {
		case err != nil:
			r.report(stateFailed, err)
			failures, wait = 0, checkLater
		case verdict == reachFailed:
			if failures++; failures == failuresToEngage {
				return true
			}
		case verdict == reachWorks:
			r.report(stateNeedless, nil)
			failures, wait = 0, checkLater
		default:
			r.report(stateWaiting, nil)
			failures = 0
		}
		if !pause(ctx, wait) {
			return false
		}
	}
}

// report sets the state, and logs it if it has changed.
func (r *reachability) report(now state, err error) {
	if r.last == now {
		return
	}
	r.last = now
	r.status.set(now)
	switch now {
	case stateFailed:
		r.status.error("cannot check whether pods reach the local addresses, so sockets are not redirected; set redirect to on or off, or let nodens enter pods' network namespaces", "error", err)
	case stateNeedless:
		r.status.log.Info("pods reach the local addresses: sockets are not redirected")
	case stateWaiting:
		r.status.log.Info("there is no pod to check from: sockets are not redirected yet")
	}
}

// isAdopted reports whether a predecessor of any version redirects.
func isAdopted(pinDir string) bool {
	pinned, err := bpf.Inspect(pinDir)
	if err != nil {
		return false
	}
	for _, p := range pinned {
		if len(p.Hooks) > 0 {
			return true
		}
	}
	return false
}
