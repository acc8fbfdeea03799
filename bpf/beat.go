package bpf

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// beat writes the heartbeat to a memory-mapped array. Not safe for concurrent use.
type beat struct {
	mem   *ebpf.Memory
	start time.Time
	mono  int64 // kernelClock at start, ns
}

func openBeat(m *ebpf.Map) (beat, error) {
	mem, err := m.Memory()
	if err != nil {
		return beat{}, explain("map heartbeat", err)
	}
	now, err := kernelClock(unix.CLOCK_MONOTONIC)
	return beat{mem: mem, start: time.Now(), mono: now}, err
}

// now returns kernelClock.
func (b *beat) now() int64 { return b.mono + int64(time.Since(b.start)) }

// write writes a heartbeat with the time now plus ahead. It stores the eight aligned
// bytes in one access, and the programs read them in one access.
func (b *beat) write(ahead time.Duration) {
	var raw [8]byte
	binary.NativeEndian.PutUint64(raw[:], uint64(b.now()+int64(ahead)))
	_, _ = b.mem.WriteAt(raw[:], 0) // fails only outside the mapping
}

// age returns the time since the last heartbeat of any process.
func (b *beat) age() (time.Duration, error) {
	var raw [8]byte
	if _, err := b.mem.ReadAt(raw[:], 0); err != nil {
		return 0, fmt.Errorf("read heartbeat: %w", err)
	}
	return heartbeatAge(binary.NativeEndian.Uint64(raw[:]))
}
