package cmdline

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// Port parses the number of a port.
func Port(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, errors.New("a port is a number from 1 to 65535")
	}
	return uint16(n), nil
}

// HostPort parses the value of -metrics-listen-address: host:port, or 0 for none.
func HostPort(s string) (string, error) {
	if s == "0" || s == "" {
		return "", nil
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = Port(port)
	}
	if err != nil {
		return "", errors.New("want host:port, or 0 for none")
	}
	return s, nil
}

// Interval parses the value of -syncinterval. A bare number is in seconds. A duration
// below a microsecond counts as that number of seconds, because node-cache reads
// nanoseconds as seconds.
func Interval(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil && n > 0 {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || d <= 0:
		return 0, errors.New("want a number of seconds, or a duration such as 60s, above 0")
	case d < time.Microsecond:
		return d * time.Second, nil
	}
	if d < time.Second {
		return 0, errors.New("want at least a second")
	}
	return d, nil
}

// Count parses a limit of at least 1.
func Count(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 20)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("want a number from 1 to %d", 1<<20-1)
	}
	return int(n), nil
}
