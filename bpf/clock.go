package bpf

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kernelClock returns CLOCK_MONOTONIC or CLOCK_MONOTONIC_COARSE in ns as programs see
// it: that of the initial time namespace, see time_namespaces(7).
func kernelClock(clock int32) (int64, error) {
	offset, err := timeOffset()
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return now.Nano() - offset, nil
}

// timeOffset is what this process's time namespace adds to CLOCK_MONOTONIC, in ns. It
// is fixed once the namespace has a process.
var timeOffset = sync.OnceValues(func() (int64, error) {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if errors.Is(err, os.ErrNotExist) { // before Linux 5.6, or without CONFIG_TIME_NS
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseTimeOffset(string(text))
})

// parseTimeOffset reads a line such as "monotonic  -5  500000000": seconds and
// nanoseconds.
func parseTimeOffset(text string) (int64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "monotonic" && fields[0] != strconv.Itoa(unix.CLOCK_MONOTONIC) {
			continue
		}
		seconds, err := strconv.ParseInt(fields[1], 10, 64)
		nanoseconds, errNano := strconv.ParseInt(fields[2], 10, 64)
		if err = errors.Join(err, errNano); err != nil {
			return 0, fmt.Errorf("time namespace: %w", err)
		}
		return seconds*int64(time.Second) + nanoseconds, nil
	}
	return 0, nil
}

// heartbeatAge returns the time since a heartbeat, 0 for one in the future (see
// Beat). It uses the coarse clock of the programs, which lags by up to a tick.
func heartbeatAge(beat uint64) (time.Duration, error) {
	now, err := kernelClock(unix.CLOCK_MONOTONIC_COARSE)
	return max(time.Duration(now-int64(beat)), 0), err
}
