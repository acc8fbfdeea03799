package bpf

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// FastpathConfig is the configuration of a Fastpath.
type FastpathConfig struct {
	// Entries is the number of small answers that the kernel holds. There are an
	// eighth as many large ones.
	Entries int
	// Answered, if not nil, gets the number of answers to a question since its last
	// call. Hits, Report and the removal of an answer call it. list is the Answer's,
	// name is in lower-case wire format and must not be kept; denied means NXDOMAIN.
	// Answered must not call the Fastpath.
	Answered func(list int, name []byte, denied bool, n uint32)
	// Asked, if not nil, gets the number of answers to a client since its last call.
	// Report and the end of a lease call it. List LeaseLists-1 includes all further
	// ones. Asked must not call the Fastpath.
	Asked func(list int, client netip.Addr, n uint32)
}

// Bytes is the memory of the maps, and of what nodens knows about their cells.
func (c FastpathConfig) Bytes() int64 {
	spec, err := loadFast()
	if err != nil {
		return 0 // OpenFastpath fails, too
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		cpus = runtime.NumCPU()
	}
	return c.bytes(spec, cpus)
}

// bytes is Bytes on a machine with that many possible CPUs.
func (c FastpathConfig) bytes(spec *ebpf.CollectionSpec, cpus int) int64 {
	const cell = 16
	n := cell * (c.Entries + c.large())
	c.resize(spec)
	for _, m := range spec.Maps {
		size := roundUp(int(m.ValueSize), 8) * int(m.MaxEntries)
		if m.Type == ebpf.PerCPUArray {
			size *= cpus
		}
		n += size
	}
	return int64(n)
}

// resize gives the maps the sizes of c.
func (c FastpathConfig) resize(spec *ebpf.CollectionSpec) {
	spec.Maps[fastMapSmallCells].MaxEntries = uint32(c.Entries)
	spec.Maps[fastMapLargeCells].MaxEntries = uint32(c.large())
	spec.Maps[fastMapBuckets].MaxEntries = uint32(c.buckets())
}

func (c FastpathConfig) large() int { return max(c.Entries/8, 1) }

// buckets is a power of two that leaves two thirds of the ways empty, so that a
// bucket is rarely full.
func (c FastpathConfig) buckets() int {
	return 1 << bits.Len(uint((c.Entries+c.large())*3/int(fastLimitsFAST_WAYS)))
}

// Fastpath is the program that answers DNS queries on the host's ends of pods'
// veths, with its tables. Nothing is pinned: when the process ends in any way, the
// kernel removes the program from all interfaces. Its methods are safe for
// concurrent use.
type Fastpath struct {
	objs     fastObjects
	memories [][]byte

	*AnswerTable
	*LeaseTable

	mu     sync.Mutex
	links  map[int]link.Link // by interface
	closed bool
}

// OpenFastpath loads the program and makes its tables. It attaches nothing. The
// error wraps ErrPermission or ErrKernel if the node lacks something.
func OpenFastpath(cfg FastpathConfig) (*Fastpath, error) {
	spec, err := loadFast()
	if err != nil {
		return nil, fmt.Errorf("fast path: %w", err)
	}
	return openFastpath(cfg, spec)
}

func openFastpath(cfg FastpathConfig, spec *ebpf.CollectionSpec) (*Fastpath, error) {
	f := &Fastpath{links: make(map[int]link.Link)}
	if err := f.open(cfg, spec); err != nil {
		return nil, errors.Join(fmt.Errorf("fast path: %w", err), f.Close())
	}
	return f, nil
}

func (f *Fastpath) open(cfg FastpathConfig, spec *ebpf.CollectionSpec) error {
	seed := rand.Uint64()
	cfg.resize(spec)
	for name, value := range map[string]any{
		fastVarHashSeed: seed, fastVarBucketMask: uint32(cfg.buckets() - 1), fastVarWeaklyOrdered: weaklyOrdered(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return err
		}
	}
	if err := f.load(spec); err != nil {
		return err
	}
	clock, err := newFastClock()
	if err != nil {
		return err
	}
	t, l := &AnswerTable{seed: seed, clock: clock, answered: cfg.Answered}, &LeaseTable{seed: seed, clock: clock, asked: cfg.Asked}
	var settings []fastSettings
	if err := errors.Join(
		mapArray(f, f.objs.Control, &settings), mapArray(f, f.objs.Buckets, &t.buckets),
		mapArray(f, f.objs.SmallCells, &t.small.cells), mapArray(f, f.objs.LargeCells, &t.large.cells),
		mapArray(f, f.objs.Leases, &l.buckets), mapArray(f, f.objs.HitsOfLeases, &l.hits),
		mapArray(f, f.objs.Notes, &l.notes),
	); err != nil {
		return err
	}
	t.settings = &settings[0]
	t.small.init()
	t.large.init()
	f.AnswerTable, f.LeaseTable = t, l
	return nil
}

// load loads the program, and checks that the kernel can attach it.
func (f *Fastpath) load(spec *ebpf.CollectionSpec) error {
	if err := rlimit.RemoveMemlock(); err != nil { // does nothing on Linux 5.11 and later
		return explainFast("remove the limit of locked memory", err)
	}
	if err := spec.LoadAndAssign(&f.objs, nil); err != nil {
		return explainFast("load", err)
	}
	// A kernel before 6.6 may load the program, but has no tcx. With tcx, attaching to an
	// interface that does not exist fails with ENODEV.
	if _, err := f.attach(math.MaxInt32); !errors.Is(err, unix.ENODEV) {
		return explainFast("attach", err)
	}
	return nil
}

// weaklyOrdered reports whether the CPU may reorder loads, so that the program
// needs barriers.
func weaklyOrdered() uint8 {
	if runtime.GOARCH == "amd64" {
		return 0
	}
	return 1
}

// mapArray maps the elements of an array into memory.
func mapArray[T any](f *Fastpath, m *ebpf.Map, into *[]T) error {
	var elem T
	size := int(unsafe.Sizeof(elem))
	if int(m.ValueSize()) != size {
		return fmt.Errorf("map %v: values of %d bytes, want %d", m, m.ValueSize(), size)
	}
	n := int(m.MaxEntries())
	mem, err := unix.Mmap(m.FD(), 0, roundUp(n*size, os.Getpagesize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return explainFast("map table", os.NewSyscallError("mmap", err))
	}
	f.memories = append(f.memories, mem)
	*into = unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), n)
	return nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// explainFast is explain for the fast path. Verifiers before Linux 6.6 refuse the
// program.
func explainFast(op string, err error) error {
	var refused *ebpf.VerifierError
	if errors.As(err, &refused) && len(refused.Log) > 0 {
		err = fmt.Errorf("%s: %w (%w)", op, ErrKernel, err)
	} else {
		err = explain(op, err)
	}
	if errors.Is(err, ErrKernel) {
		return fmt.Errorf("%w; the fast path needs Linux 6.6", err)
	}
	return err
}

// Attach puts the program in front of the others on an interface's ingress. It has
// no effect if the program is there. It takes about 16 ms and blocks changes of the
// host's network meanwhile, so attach a few interfaces a second.
func (f *Fastpath) Attach(ifindex int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.links[ifindex] != nil {
		return nil
	}
	l, err := f.attach(ifindex)
	if err != nil {
		return explainFast("attach", err)
	}
	f.links[ifindex] = l
	return nil
}

func (f *Fastpath) attach(ifindex int) (link.Link, error) {
	return link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: f.objs.Fastpath, Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
	})
}

// Detach removes the program and the leases of an interface, which may no longer
// exist.
func (f *Fastpath) Detach(ifindex int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.links[ifindex]
	if l == nil {
		return nil
	}
	delete(f.links, ifindex)
	f.revoke(func(i uint32) bool { return i == uint32(ifindex) })
	return l.Close()
}

// Attached returns the interfaces that have the program.
func (f *Fastpath) Attached() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.links))
}

// Close removes the program from all interfaces. The tables must not be used any
// more.
func (f *Fastpath) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	var errs []error
	for _, l := range f.links {
		errs = append(errs, l.Close())
	}
	f.links = nil
	for _, m := range f.memories {
		errs = append(errs, unix.Munmap(m))
	}
	if f.objs.Fastpath != nil {
		errs = append(errs, f.objs.Close())
	}
	return errors.Join(errs...)
}

// fastClock is the clock of the programs. It saves the system call for each reading.
type fastClock struct {
	start time.Time
	mono  int64 // CLOCK_MONOTONIC at start, ns
}

func newFastClock() (fastClock, error) {
	mono, err := kernelClock(unix.CLOCK_MONOTONIC)
	return fastClock{start: time.Now(), mono: mono}, err
}

// now returns CLOCK_MONOTONIC in ns.
func (c fastClock) now() int64 { return c.mono + int64(time.Since(c.start)) }

// words returns an address as the programs have it: network byte order, IPv4 as
// v4-mapped.
func words(a netip.Addr) [4]uint32 { return toEndpoint(netip.AddrPortFrom(a, 0)).Addr }

// mix is the program's hash step.
func mix(h, word uint64) uint64 {
	h = (h ^ word) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func pair(lo, hi uint32) uint64 {
	return *(*uint64)(unsafe.Pointer(&[2]uint32{lo, hi}))
}
