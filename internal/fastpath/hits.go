package fastpath

import (
	"context"
	"time"

	"github.com/nodens-dns/nodens/internal/tick"
)

// reportInterval is the time between two reports of the kernel's answers.
const reportInterval = 5 * time.Second

// reportHits reports the kernel's answers until ctx is done.
func (f *linkFollower) reportHits(ctx context.Context) {
	tick.Call(ctx, reportInterval, f.kernel.Report)
	f.kernel.Report()
}
