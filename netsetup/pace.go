package netsetup

import "time"

// pace keeps two programs that undo each other's work, as Watch and another
// manager of a firewall may, from spinning: so many repairs go at once, then one
// a second.
type pace struct {
	left float64 // repairs that may go at once
	at   time.Time
}

// repairsAtOnce is enough for a firewall that is reloaded bit by bit.
const repairsAtOnce = 20

func newPace(now time.Time) *pace { return &pace{left: repairsAtOnce, at: now} }

// after is the pause that follows a check at now, which had something to repair
// or not.
func (p *pace) after(repaired bool, now time.Time) time.Duration {
	p.left = min(repairsAtOnce, p.left+now.Sub(p.at).Seconds())
	p.at = now
	if repaired {
		p.left = max(0, p.left-1)
	}
	if p.left < 1 {
		return time.Second
	}
	return repairPause
}
