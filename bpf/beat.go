package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// beat writes the heartbeat to a memory-mapped array. Not safe for concurrent use.
type beat struct {
	mem   *ebpf.Memory
	start time.Time
	mono  int64 // CLOCK_MONOTONIC at start, ns
}

func openBeat(m *ebpf.Map) (beat, error) {
	mem, err := m.Memory()
	if err != nil {
		return beat{}, explain("map heartbeat", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return beat{}, os.NewSyscallError("clock_gettime", err)
	}
	return beat{mem: mem, start: time.Now(), mono: now.Nano()}, nil
}

// now returns CLOCK_MONOTONIC, the clock of the programs, in ns.
func (b *beat) now() int64 { return b.mono + int64(time.Since(b.start)) }

// write stores the eight aligned bytes in one access, and the programs read them in
// one.
func (b *beat) write() {
	var raw [8]byte
	binary.NativeEndian.PutUint64(raw[:], uint64(b.now()))
	_, _ = b.mem.WriteAt(raw[:], 0) // fails only outside the mapping
}

// age returns the time since the last heartbeat of any process. It uses the coarse
// clock of the programs, which lags by up to a tick.
func (b *beat) age() (time.Duration, error) {
	var raw [8]byte
	if _, err := b.mem.ReadAt(raw[:], 0); err != nil {
		return 0, fmt.Errorf("read heartbeat: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(now.Nano() - int64(binary.NativeEndian.Uint64(raw[:]))), nil
}
