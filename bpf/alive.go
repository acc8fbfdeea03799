package bpf

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
)

// errClosed is the error of methods after Close.
var errClosed = fmt.Errorf("redirect: %w", os.ErrClosed)

// Alive declares that this process answers. From now on, the kernel sends lookups of
// its services to their targets. Alive also sends a heartbeat.
func (r *Redirect) Alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	return r.declareAlive()
}

// declareAlive needs mu.
func (r *Redirect) declareAlive() error {
	if r.canary == nil {
		own, err := openCanary()
		if err != nil {
			return fmt.Errorf("redirect: %w", err)
		}
		r.canary = own
	}
	return r.takeOver()
}

// takeOver replaces the services and the canary of another process by ours. The
// caller holds mu.
func (r *Redirect) takeOver() error {
	if err := r.table.apply(); err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	r.beat.write(0)
	if err := r.objs.Canary.Put(uint32(0), uint64(r.canary.fd)); err != nil {
		return explain("redirect: put canary", err)
	}
	r.alive = true
	return nil
}

// BeatResult is what Beat did.
type BeatResult int

const (
	BeatNone       BeatResult = iota // nothing: this process withdrew, or another one took over
	BeatSent                         // it sent a heartbeat
	BeatFromFrozen                   // also, it took over from a frozen process, which may still hold the target's port
)

// Beat sends a heartbeat. Call it when an answer has come through the serving path.
// It does nothing unless this process is alive and no successor has taken over,
// because a heartbeat must not hide that another process hangs. If a successor took
// over and ended, as in an upgrade that is rolled back, or is frozen, Beat takes over
// again. ahead is the time until the next heartbeat: the kernel counts the timeout from
// its end.
func (r *Redirect) Beat(ahead time.Duration) (BeatResult, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.alive {
		return BeatNone, nil
	}
	cookie, err := canaryCookie(r.objs.Canary)
	if err != nil {
		return BeatNone, fmt.Errorf("redirect: beat: %w", err)
	}
	if cookie == r.canary.cookie {
		r.beat.write(ahead)
		return BeatSent, nil
	}
	age, err := r.beat.age()
	switch successor := (holder{cookie, age}); {
	case err != nil || successor.lives():
		return BeatNone, err
	case cookie != 0:
		r.log.Warn("the process that had taken over is frozen: taking over again", "pin_dir", r.dir, "heartbeat_age", age)
	default:
		r.log.Info("the process that had taken over ended: taking over again", "pin_dir", r.dir)
	}
	if err := r.takeOver(); err != nil {
		return BeatNone, err
	}
	if cookie != 0 {
		return BeatFromFrozen, nil
	}
	return BeatSent, nil
}

// KeepFallbacks tells the kernel that this process, which withdrew, still updates the
// fallbacks: Service.Proxied and Service.LastResort count from the last call. While a
// process is alive, it does nothing, because the call would count as a heartbeat of that
// process.
func (r *Redirect) KeepFallbacks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	holder, err := canaryCookie(r.objs.Canary)
	if err == nil && holder == 0 {
		r.beat.write(0)
	}
	return err
}

// Withdraw declares that this process will not answer. Once it has returned, every
// new lookup goes to a fallback. It leaves a successor's canary in place.
func (r *Redirect) Withdraw() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.canary == nil {
		return nil
	}
	cookie := r.canary.cookie
	// Closing removes our entry only, even if another process puts one in meanwhile.
	err := r.canary.close()
	r.canary = nil
	if !r.alive {
		return err
	}
	r.alive = false
	// A child between fork and exec still holds the socket.
	holder, lookupErr := canaryCookie(r.objs.Canary)
	if lookupErr == nil && holder == cookie {
		lookupErr = r.objs.Canary.Delete(uint32(0))
	}
	if errors.Is(lookupErr, ebpf.ErrKeyNotExist) {
		lookupErr = nil
	}
	if err = errors.Join(err, lookupErr); err != nil {
		return fmt.Errorf("redirect: withdraw: %w", err)
	}
	return nil
}

// canaryCookie returns SO_COOKIE of the canary in the map m, 0 if there is none.
func canaryCookie(m *ebpf.Map) (uint64, error) {
	var cookie uint64
	err := m.Lookup(uint32(0), &cookie)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, explain("look up canary", err)
	}
	return cookie, nil
}
