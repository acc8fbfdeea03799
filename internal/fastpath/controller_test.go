package fastpath

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
)

// TestPlansOfReloads: a reload must not need tables for which the cache has not given up
// memory. If the program could not be loaded at the start, each reload is accepted.
func TestPlansOfReloads(t *testing.T) {
	off := Plan{Mode: config.FastpathOff, Entries: 1024}
	on, more := Plan{Mode: config.FastpathOn, Entries: 1024}, Plan{Mode: config.FastpathAuto, Entries: 2048}
	for _, test := range []struct {
		name    string
		taken   int64
		failed  error
		next    Plan
		most    int64
		refusal string
	}{
		{"the same", on.bytes(), nil, on, more.bytes(), ""},
		{"off", on.bytes(), nil, off, more.bytes(), ""},
		{"on", 0, nil, on, more.bytes(), "restart nodens"},
		{"more entries", on.bytes(), nil, more, more.bytes(), "restart nodens"},
		{"fewer entries", more.bytes(), nil, on, more.bytes(), ""},
		{"too many entries", on.bytes(), nil, more, on.bytes(), "lower the option entries"},
		{"old kernel", 0, bpf.ErrKernel, more, more.bytes(), ""},
	} {
		c := &Controller{most: test.most, taken: test.taken, failed: test.failed}
		err := c.Check(test.next)
		if (err != nil) != (test.refusal != "") || err != nil && !strings.Contains(err.Error(), test.refusal) {
			t.Errorf("%s: error %v, want %q", test.name, err, test.refusal)
		}
	}
}

// TestLogsOnce: nodens logs a reason once, however many interfaces it concerns and however
// often it tries again.
func TestLogsOnce(t *testing.T) {
	var log bytes.Buffer
	f := newLinkFollower(&Controller{log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		for ifindex := range 3 {
			f.fail(ifindex, errors.New("attach: first"))
			f.fail(ifindex, errors.New("attach: second"))
		}
	}
	for _, want := range []string{"attach: first", "attach: second"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%d log lines with %q:\n%s", n, want, log.String())
		}
	}
}

func TestPortsOverLimit(t *testing.T) {
	var addrs []netip.AddrPort
	for port := uint16(50); port < 57; port++ {
		addrs = append(addrs, netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.AddrPortFrom(netip.IPv6Loopback(), port))
	}
	if got := portsOverLimit(addrs[:2*bpf.MaxFastPorts]); len(got) != 0 {
		t.Errorf("ports %v of %v are over the limit", got, addrs[:2*bpf.MaxFastPorts])
	}
	if got, want := portsOverLimit(addrs), []uint16{54, 55, 56}; !slices.Equal(got, want) {
		t.Errorf("ports %v are over the limit, want %v", got, want)
	}
}
