package bpf

import (
	"os/exec"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestParseTimeOffset(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime            5         0\n": 0,
		"monotonic      100000         7\nboottime            0         0\n": 100000*1e9 + 7,
		"monotonic          -2 500000000\n":                                  -1500000000,
		"":                                                                   0,
	} {
		if got, err := parseTimeOffset(text); got != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	if _, err := parseTimeOffset("monotonic x 0"); err == nil {
		t.Error("no error")
	}
}

// The heartbeats of a daemon in a time namespace have the kernel's time.
func TestHeartbeatInATimeNamespace(t *testing.T) {
	wrapper := []string{"unshare", "--time", "--fork", "--kill-child", "--monotonic", "100000", "--"}
	lab.NeedBPF(t)
	if err := exec.Command(wrapper[0], append(wrapper[1:], "true")...).Run(); err != nil {
		t.Skip("no time namespace: ", err)
	}
	p, cfg := newServedPod(t)
	startDaemon(t, nil, p.ns, cfg, wrapper...)
	pinned, err := Inspect(cfg.Redirect.PinDir)
	check(t, err)
	if age := pinned[0].HeartbeatAge; age.Abs() > longTimeout {
		t.Errorf("the last heartbeat was %v ago", age)
	}
	p.askAll(t, "daemon")
}
