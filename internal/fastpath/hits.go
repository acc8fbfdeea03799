package fastpath

import (
	"context"
	"time"
)

// reportInterval is the time between two reports of the kernel's answers.
const reportInterval = 5 * time.Second

// reportHits reports the kernel's answers until ctx is done.
func (f *linkFollower) reportHits(ctx context.Context) {
	defer f.kernel.Report()
	tick := time.NewTicker(reportInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.kernel.Report()
		}
	}
}
