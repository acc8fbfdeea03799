package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// pinMark is a file beside the cache snapshot that exists while programs of redirection
// are pinned. They outlive the process. A later process without /sys/fs/bpf does not see
// them, and pods would query old fallbacks. It has the boot ID: pins end with a reboot.
type pinMark struct {
	path   string // empty: there is no mark
	pinDir string
	log    *slog.Logger
}

func newPinMark(b base) pinMark {
	m := pinMark{pinDir: b.opts.Redirect.PinDir, log: b.log}
	if s := b.opts.CacheSnapshot; s != "" {
		m.path = s + ".pins" // teardown removes it with the snapshot
	}
	return m
}

// set makes the file, or removes it. A process that cannot see pins does not remove it.
func (m pinMark) set(pinned bool) {
	if m.path == "" || !pinned && !m.visible() {
		return
	}
	err := removeIfExists(m.path)
	if pinned {
		err = errors.Join(makeOwned(filepath.Dir(m.path)), os.WriteFile(m.path, bootID(), 0o600))
	}
	if err != nil {
		m.log.Warn("nodens cannot note whether programs are pinned; turn redirection off before you take /sys/fs/bpf away", "file", m.path, "error", err)
	}
}

// check fails if a process that does not redirect would leave programs pinned. A mark
// that it cannot read does not stop it.
func (m pinMark) check(context.Context) error {
	if m.path == "" {
		return nil
	}
	if boot, err := os.ReadFile(m.path); err != nil || !bytes.Equal(boot, bootID()) {
		return nil
	}
	if m.visible() {
		return nil // redirection removes them
	}
	return fmt.Errorf("an earlier nodens has pinned BPF programs in %s, which this one cannot remove: first deploy nodens with its earlier privileges (the chart's tier) and `redirect off`, or apply deploy/teardown.yaml; if nothing is pinned, delete %s", m.pinDir, m.path)
}

// visible reports whether this process sees pins.
func (m pinMark) visible() bool {
	var st unix.Statfs_t
	err := unix.Statfs(filepath.Dir(m.pinDir), &st)
	return err == nil && st.Type == unix.BPF_FS_MAGIC
}

// bootID differs after each boot of the node.
func bootID() []byte {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without /proc: as if never rebooted
	return id
}
