//go:build !steppedclock

package daemon

import "time"

// clock is the time by which answers age.
func clock(func(string) string) (now func() time.Time, err error) { return time.Now, nil }
