package statuspage

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/nodens-dns/nodens/internal/doctor"
)

const (
	// FindingsPath returns doctor's report, as nodens doctor -o json prints it, but
	// without a pod's view.
	FindingsPath = "/api/v1/findings"

	findingsAge  = 10 * time.Second // maximum age of a report
	examineLimit = 30 * time.Second // timeout of one examination
)

// findings serves doctor's report.
type findings struct {
	examine func(context.Context) *doctor.Report
	now     func() time.Time

	turn chan struct{} // a lock: a request that puts an element in owns the fields below
	last *doctor.Report
	at   time.Time // of last
}

// Findings returns the handler of FindingsPath. One examination runs at a time. Requests
// that arrive during it wait and get its report.
func Findings(examine func(context.Context) *doctor.Report, now func() time.Time) http.Handler {
	return &findings{examine: examine, now: now, turn: make(chan struct{}, 1)}
}

func (f *findings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(2 * examineLimit))
	ctx, cancel := context.WithTimeout(r.Context(), examineLimit)
	defer cancel()
	report, err := f.report(ctx)
	if err != nil {
		http.Error(w, "the examination did not end in time: run nodens doctor on the node", http.StatusGatewayTimeout)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(report)
}

// report returns a report that is at most findingsAge old, or the error of ctx.
func (f *findings) report(ctx context.Context) (*doctor.Report, error) {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if f.last != nil && f.now().Sub(f.at) < findingsAge {
		return f.last, nil
	}
	report := f.examine(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err // its queries may have failed because of ctx
	}
	f.last, f.at = report, f.now()
	return report, nil
}
