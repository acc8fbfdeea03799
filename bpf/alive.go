package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// errClosed is what methods return after Close.
var errClosed = fmt.Errorf("redirect: %w", os.ErrClosed)

// Alive says that this process answers: services go to their targets from here
// on. It also beats once.
func (r *Redirect) Alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errClosed
	}
	if r.canary == nil {
		bird, err := openCanary()
		if err != nil {
			return fmt.Errorf("redirect: %w", err)
		}
		r.canary = bird
	}
	return r.takeTurn()
}

// takeTurn puts our services and our canary in place of whoever's there were. The
// caller holds mu.
func (r *Redirect) takeTurn() error {
	if err := r.applyServices(); err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	r.beat.write()
	if err := r.objs.Canary.Put(uint32(0), uint64(r.canary.fd)); err != nil {
		return explain("redirect: put canary", err)
	}
	r.alive = true
	return nil
}

// Beat says that an answer came through the serving path just now. It does nothing
// unless this process is alive and nobody has taken its place, so that it cannot
// vouch for another. A place that a successor took and left, as in an upgrade that
// is taken back, it takes again.
func (r *Redirect) Beat() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.alive {
		return nil
	}
	holder, err := r.canaryCookie()
	switch {
	case err != nil:
		return fmt.Errorf("redirect: beat: %w", err)
	case holder == r.canary.cookie:
		r.beat.write()
	case holder == 0:
		r.log.Info("the process that had taken over is gone: taking its place", "pin_dir", r.dir)
		return r.takeTurn()
	}
	return nil
}

// Withdraw says that this process will not answer: from its return on every new
// look-up goes to a fallback. A successor's canary is left alone.
func (r *Redirect) Withdraw() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.canary == nil {
		return nil
	}
	cookie := r.canary.cookie
	// Closing takes out our entry and no other, whoever puts one in meanwhile.
	err := r.canary.close()
	r.canary = nil
	if !r.alive {
		return err
	}
	r.alive = false
	// A child between fork and exec still holds the socket.
	holder, lookErr := r.canaryCookie()
	if lookErr == nil && holder == cookie {
		lookErr = r.objs.Canary.Delete(uint32(0))
	}
	if errors.Is(lookErr, ebpf.ErrKeyNotExist) {
		lookErr = nil
	}
	if err = errors.Join(err, lookErr); err != nil {
		return fmt.Errorf("redirect: withdraw: %w", err)
	}
	return nil
}

// canaryCookie returns SO_COOKIE of the canary that is in, 0 if none is.
func (r *Redirect) canaryCookie() (uint64, error) {
	var cookie uint64
	err := r.objs.Canary.Lookup(uint32(0), &cookie)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, explain("look up canary", err)
	}
	return cookie, nil
}
