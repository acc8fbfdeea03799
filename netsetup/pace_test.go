package netsetup

import (
	"testing"
	"time"
)

// Who undoes every repair gets one a second in the long run; who leaves them be
// gets the next at once again.
func TestPaceOfRepairs(t *testing.T) {
	now := time.Unix(0, 0)
	p := newPace(now)
	repairs := 0
	for end := now.Add(10 * time.Minute); now.Before(end); repairs++ {
		now = now.Add(p.after(true, now))
	}
	if repairs < 600 || repairs > 600+2*repairsAtOnce {
		t.Errorf("%d repairs in ten minutes of war", repairs)
	}
	now = now.Add(repairsAtOnce * time.Second)
	for i := range repairsAtOnce - 1 {
		d := p.after(true, now)
		if d != repairPause {
			t.Errorf("pause of %v after repair %d in peace", d, i)
		}
	}
	for range 100 { // checks that find all right are free
		now = now.Add(repairPause)
		p.after(false, now)
	}
	if d := p.after(false, now); d != repairPause {
		t.Errorf("pause of %v after checks without a repair", d)
	}
}
