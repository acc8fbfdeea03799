package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
)

// Redirect holds the loaded programs and their pinned maps. Its methods are safe for
// concurrent use.
type Redirect struct {
	pinDir string
	dir    string // of this version, below pinDir
	log    *slog.Logger
	objs   redirectObjects

	mu      sync.Mutex // guards what follows
	canary  *canary    // nil once withdrawn or closed
	alive   bool       // the canary is in the map
	beat    beat
	table   serviceTable
	exempts exemptions
	links   links
	used    *os.File // dir, see useDir
	pins    pinInodes
	closed  bool
}

// OpenRedirect loads the programs and creates the pinned maps, or adopts those of a
// predecessor. It attaches nothing; a predecessor's links stay attached. While
// another process holds the canary, that process's services stay until Alive.
//
// If the node lacks something, the error wraps ErrNoBPFFS, ErrPermission, ErrKernel
// or ErrCgroup.
func OpenRedirect(cfg RedirectConfig) (*Redirect, error) {
	return openVersion(cfg, layoutVersion)
}

func openVersion(cfg RedirectConfig, version string) (*Redirect, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	own, err := openCanary()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	r := &Redirect{pinDir: cfg.PinDir, dir: versionDir(cfg.PinDir, version), log: cfg.Logger, canary: own, pins: make(pinInodes)}
	r.exempts = exemptions{cgroup: cfg.Cgroup, maps: &r.objs.redirectMaps}
	r.links = links{cgroup: cfg.Cgroup, dir: r.dir, log: r.log, programs: &r.objs.redirectPrograms, held: make(map[string]link.Link), pins: r.pins}
	r.table = serviceTable{
		maps: &r.objs.redirectMaps, exempts: &r.exempts, log: r.log, timeout: cfg.HeartbeatTimeout,
		services: make(map[netip.AddrPort]Service, len(cfg.Services)),
	}
	for _, s := range cfg.Services {
		r.table.services[s.VIP] = s
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("redirect: %w", err), r.Close())
	}
	return r, nil
}

func (r *Redirect) open() error {
	if _, err := cgroupID(r.links.cgroup); err != nil {
		return err
	}
	if err := r.makeDirs(); err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // does nothing on Linux 5.11 and later
		return explain("lift the limit of locked memory", err)
	}
	if err := loadObjects(&r.objs, r.dir); err != nil {
		return err
	}
	var err error
	if r.beat, err = openBeat(r.objs.Heartbeat); err != nil {
		return err
	}
	if err := r.exempts.addSelf(); err != nil {
		return err
	}
	holder, err := canaryCookie(r.objs.Canary)
	if err != nil {
		return err
	}
	if holder != 0 {
		r.log.Info("another process is alive: its services stay until this process takes over", "pin_dir", r.dir)
		return nil
	}
	return r.table.apply()
}

// makeDirs makes the directories and marks them as used. Others keep pins in a
// directory that is used.
func (r *Redirect) makeDirs() error {
	if err := makePinDirs(r.pinDir); err != nil {
		return err
	}
	defer lockPins(r.pinDir)()
	return r.useDirs()
}

// useDirs needs the lock of the pins.
func (r *Redirect) useDirs() error {
	if err := makePinDirs(filepath.Join(r.dir, linksDir)); err != nil {
		return err
	}
	if r.used != nil {
		held, err := r.used.Stat()
		now, statErr := os.Stat(r.dir)
		if err = errors.Join(err, statErr); err != nil || os.SameFile(held, now) {
			return err
		}
		_ = r.used.Close() // the directory was removed
	}
	var err error
	r.used, err = useDir(r.dir)
	return err
}

// loadObjects loads the programs and maps. It uses the precise clock if the kernel has no
// coarse one (Linux 5.10).
func loadObjects(objs *redirectObjects, dir string) error {
	err := loadWith(objs, dir, true)
	if err == nil {
		return nil
	}
	probe := features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnKtimeGetCoarseNs)
	if errors.Is(probe, ebpf.ErrNotSupported) {
		err = loadWith(objs, dir, false)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("load: %w: %s holds maps with another layout, remove them with nodens teardown", err, dir)
	}
	return explain("load", err)
}

func loadWith(objs *redirectObjects, dir string, coarseClock bool) error {
	spec, err := loadRedirect()
	if err != nil {
		return err
	}
	for name, m := range spec.Maps {
		if name != ".rodata" { // not shared between processes
			m.Pinning = ebpf.PinByName
		}
	}
	if !coarseClock {
		if err := spec.Variables[redirectVarHasCoarseClock].Set(uint8(0)); err != nil {
			return err
		}
	}
	return spec.LoadAndAssign(objs, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: dir}})
}

// Close withdraws and closes all file descriptors. The pins stay: programs send
// lookups to the fallbacks.
func (r *Redirect) Close() error {
	err := r.Withdraw()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.used != nil {
		_ = r.used.Close()
	}
	if r.objs.Connect4 == nil {
		return err // was never loaded
	}
	return errors.Join(err, r.links.close(), r.objs.Close())
}
