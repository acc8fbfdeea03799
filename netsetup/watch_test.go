package netsetup

import (
	"testing"
	"time"
)

// If another program undoes every repair, the rate falls to one a second. After a
// quiet time, repairs follow at once again.
func TestRepairRateLimit(t *testing.T) {
	now := time.Unix(0, 0)
	p := newRateLimit(now)
	repairs := 0
	for end := now.Add(10 * time.Minute); now.Before(end); repairs++ {
		now = now.Add(p.pause(true, now))
	}
	if repairs < 600 || repairs > 600+2*repairBurst {
		t.Errorf("%d repairs in ten minutes", repairs)
	}
	now = now.Add(repairBurst * time.Second)
	for i := range repairBurst - 1 {
		d := p.pause(true, now)
		if d != repairPause {
			t.Errorf("pause of %v after repair %d of a burst", d, i)
		}
	}
	for range 100 { // checks without a repair are free
		now = now.Add(repairPause)
		p.pause(false, now)
	}
	if d := p.pause(false, now); d != repairPause {
		t.Errorf("pause of %v after checks without a repair", d)
	}
}
