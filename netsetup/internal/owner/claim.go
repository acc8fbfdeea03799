// Package owner decides which process of nodens owns an object on the host: the
// addresses, the rules, or the accept rules in other tables.
//
// Each process has a generation. It marks what it sets up with its generation
// (Comment, Mark), and holds an abstract unix socket per object for as long as
// it wants the object (Claim). Another process reads the mark and looks for the
// socket: the owner of the mark runs, is ending, or was killed.
package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodens-dns/nodens/netsetup/internal/netns"
)

// Objects, as label values and in socket names.
const (
	Addresses = "addresses"
	Rules     = "rules"
	Accepts   = "accepts"
)

// exitGrace is how long a process that has withdrawn its claim may take to remove
// its marks or to hand them back. If they remain longer, it was killed.
const exitGrace = 5 * time.Second

// ErrNoGeneration means that the configuration has no generation, so that
// nothing can be marked.
var ErrNoGeneration = errors.New("network setup: no generation is configured")

// Claim is the claim of this process to one object. The lock of the object
// guards it.
type Claim struct {
	object string
	id     Identity

	wanted bool
	socket int                // bound to the claim's address; -1: none
	absent map[Mark]time.Time // marks without a process, and when each was first seen
}

// Identity holds the values that all claims of one process share.
type Identity struct {
	Generation string // "": the process only reads
	NetNS      int    // file descriptor; 0: the process's own
	Log        *slog.Logger
	Now        func() time.Time
}

// NewClaim does not claim the object yet.
func NewClaim(object string, id Identity) *Claim {
	return &Claim{object: object, id: id, socket: -1, absent: make(map[Mark]time.Time)}
}

// address is the abstract unix address of a claim. Abstract addresses are per
// network namespace, and the kernel releases them however the process ends.
func (c *Claim) address(m Mark) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: fmt.Sprintf("@nodens-%s-%06x", c.object, uint32(m)&0xffffff)}
}

// Wanted reports whether the process claims the object.
func (c *Claim) Wanted() bool { return c.wanted }

// Owns reports whether generation is that of this process.
func (c *Claim) Owns(generation string) bool {
	return generation != "" && generation == c.id.Generation
}

// Announce claims the object until Withdraw. If the socket cannot be bound, it only
// logs: the setup works, but a newer process will not hand it back. If the address
// is in use, a generation of the same digest holds it, and its socket counts for
// both.
func (c *Claim) Announce(ctx context.Context) error {
	if c.id.Generation == "" {
		return ErrNoGeneration
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.wanted = true
	if c.socket >= 0 {
		return nil
	}
	fd, err := unixSocket(c.id.NetNS)
	if err == nil {
		if err = unix.Bind(fd, c.address(MarkOf(c.id.Generation))); err == nil {
			c.socket = fd
			return nil
		}
		_ = unix.Close(fd)
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		c.id.Log.Warn("other processes of nodens cannot detect this one", "object", c.object, "error", err)
	}
	return nil
}

// Withdraw gives up the claim. A process must withdraw before it reads the mark
// that decides whether it removes the object: see HandBack.
func (c *Claim) Withdraw() {
	c.wanted = false
	if c.socket >= 0 {
		_ = unix.Close(c.socket)
		c.socket = -1
	}
}

// Claimed reports whether a process claims the object for mark m. It reports false
// if it cannot look up the socket.
func (c *Claim) Claimed(m Mark) bool {
	fd, err := unixSocket(c.id.NetNS)
	if err != nil {
		c.id.Log.Warn("cannot look for another process", "object", c.object, "error", err)
		return false
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, c.address(m)) // a datagram socket: does not block
	// A security module may deny the connection, but only to an existing socket.
	return err == nil || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// Blocks reports whether the owner of mark m keeps this process from repairing
// the object. A process that was killed does so for exitGrace only.
func (c *Claim) Blocks(m Mark) bool {
	if c.Claimed(m) {
		delete(c.absent, m)
		return true
	}
	now := c.id.Now()
	since, known := c.absent[m]
	if !known {
		c.absent[m] = now
	}
	return !known || now.Sub(since) < exitGrace
}

// Blocking returns generation if it is another one that Blocks, else "".
func (c *Claim) Blocking(generation string) string {
	if generation == "" || c.Owns(generation) || !c.Blocks(MarkOf(generation)) {
		return ""
	}
	return generation
}

// HandBack gives the object to the generation of mark m by calling write, if a
// process claims it, and reports whether that process keeps it. The receiver may end
// at the same time. It withdraws before it reads the mark, and HandBack writes the
// mark before it looks for the claim again. So at least one of the two sees that no
// owner is left, and removes the object.
func (c *Claim) HandBack(m Mark, write func() error) (bool, error) {
	if !c.Claimed(m) {
		return false, nil
	}
	if err := write(); err != nil {
		return false, err
	}
	return c.Claimed(m), nil
}

// Repair converges a wanted object unless another generation blocks, which it
// returns.
func (c *Claim) Repair(blocking func() (string, error), converge func() (bool, error)) (changed bool, other string, err error) {
	if !c.wanted {
		return false, "", nil
	}
	if other, err = blocking(); err != nil || other != "" {
		return false, other, err
	}
	changed, err = converge()
	return changed, "", err
}

// unixSocket opens a datagram socket in the namespace: the peer need not accept
// its connection.
func unixSocket(netNS int) (fd int, err error) {
	err = netns.Do(netNS, func() error {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open unix socket: %w", err)
	}
	return fd, nil
}
