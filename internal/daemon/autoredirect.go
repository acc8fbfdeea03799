package daemon

import (
	"context"
	"time"

	"github.com/nodens-dns/nodens/bpf"
)

// How often auto looks whether pods reach our addresses.
const (
	probePodsAgain  = 3 * time.Second  // while there is no pod, or to be sure
	probeAgain      = 30 * time.Second // while they do
	probesThatCount = 2                // rounds in a row that fail: a new pod may not have its network yet
)

// decide returns true when pods turn out not to reach our addresses, and false
// when ctx is done. It goes on for as long as they do reach them: a CNI may be
// upgraded under running pods.
func (r *redirector) decide(ctx context.Context, probe podProbe) bool {
	failing, last := 0, redirectState("")
	for {
		verdict, err := probe.round(ctx)
		if ctx.Err() != nil {
			return false
		}
		wait := probePodsAgain
		switch {
		case err != nil:
			last = r.tell(last, stateFailed, err)
			failing, wait = 0, probeAgain
		case verdict == reachFailed:
			if failing++; failing == probesThatCount {
				return true
			}
		case verdict == reachWorks:
			last = r.tell(last, stateNeedless, nil)
			failing, wait = 0, probeAgain
		default:
			last = r.tell(last, stateWaiting, nil)
			failing = 0
		}
		if !pause(ctx, wait) {
			return false
		}
	}
}

// tell logs a state that is not the last one.
func (r *redirector) tell(last, now redirectState, err error) redirectState {
	if last == now {
		return now
	}
	r.metrics.set(now)
	switch now {
	case stateFailed:
		r.metrics.errors.Inc()
		r.log.Error("whether pods reach the local addresses cannot be told, sockets are not redirected; say redirect on or off, or let nodens enter pods' network namespaces", "error", err)
	case stateNeedless:
		r.log.Info("pods reach the local addresses: sockets are not redirected")
	case stateWaiting:
		r.log.Info("no pod is there to ask from: sockets are not redirected yet")
	}
	return now
}

// isAdopted reports whether a predecessor redirects, of whichever version.
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
