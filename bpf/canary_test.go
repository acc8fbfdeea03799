package bpf

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A canary has a higher descriptor than all later ones, even with a low limit.
func TestCanaryIsHighest(t *testing.T) {
	var before unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	t.Cleanup(func() { check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before)) })
	for _, limit := range []uint64{before.Max, 256} {
		check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: before.Max}))
		for range 2 {
			c, err := openCanary()
			check(t, err)
			defer func() { check(t, c.close()) }()
			if top := min(limit, canaryDescriptor+1); c.fd < int(top)-2 {
				t.Errorf("descriptor %d with a limit of %d", c.fd, limit)
			}
		}
	}
}
