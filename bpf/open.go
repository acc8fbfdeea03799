package bpf

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
)

// Redirect holds the loaded programs and their pinned maps. Its methods are safe for
// concurrent use.
type Redirect struct {
	cgroup  string
	pinDir  string
	dir     string // of this version, below pinDir
	timeout time.Duration
	log     *slog.Logger
	objs    redirectObjects

	mu       sync.Mutex
	canary   *canary // nil once withdrawn or closed
	alive    bool    // the canary is in the map
	beat     beat
	services map[netip.AddrPort]Service // by VIP
	closed   bool
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

func openVersion(cfg RedirectConfig, version int) (*Redirect, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	own, err := openCanary()
	if err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	r := &Redirect{
		cgroup:   cfg.Cgroup,
		pinDir:   cfg.PinDir,
		dir:      versionDir(cfg.PinDir, version),
		timeout:  cfg.HeartbeatTimeout,
		log:      cfg.Logger,
		canary:   own,
		services: make(map[netip.AddrPort]Service, len(cfg.Services)),
	}
	for _, s := range cfg.Services {
		r.services[s.VIP] = s
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("redirect: %w", err), r.Close())
	}
	return r, nil
}

func (r *Redirect) open() error {
	if _, err := cgroupID(r.cgroup); err != nil {
		return err
	}
	if err := makePinDirs(r.dir); err != nil {
		return err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // does nothing on Linux 5.11 and later
		return explain("lift the limit of locked memory", err)
	}
	if err := r.load(); err != nil {
		return err
	}
	var err error
	if r.beat, err = openBeat(r.objs.Heartbeat); err != nil {
		return err
	}
	if err := r.exemptSelf(); err != nil {
		return err
	}
	holder, err := r.canaryCookie()
	if err != nil {
		return err
	}
	if holder != 0 {
		r.log.Info("another process is alive: its services stay until this process takes over", "pin_dir", r.dir)
		return nil
	}
	return r.applyServices()
}

// load uses the precise clock if the kernel has no coarse one (Linux 5.10).
func (r *Redirect) load() error {
	err := r.loadWith(true)
	if err == nil {
		return nil
	}
	probe := features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnKtimeGetCoarseNs)
	if errors.Is(probe, ebpf.ErrNotSupported) {
		err = r.loadWith(false)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		return fmt.Errorf("load: %w: %s holds maps with another layout, remove them with nodens teardown", err, r.dir)
	}
	return explain("load", err)
}

func (r *Redirect) loadWith(coarseClock bool) error {
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
	return spec.LoadAndAssign(&r.objs, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: r.dir}})
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
	if r.objs.Connect4 == nil {
		return err // was never loaded
	}
	return errors.Join(err, r.objs.Close())
}
