package netsetup

import (
	"context"
	"errors"
	"fmt"

	"github.com/nodens-dns/nodens/netsetup/firewall"
	"github.com/nodens-dns/nodens/netsetup/internal/owner"
)

// Host is the network setup of one namespace. Each part converges to the Config
// on its own; Watch repairs them. It is safe for concurrent use.
type Host struct {
	Addresses *Addresses
	Rules     *Rules
	Firewall  *firewall.Firewall

	cfg     Config
	kernel  *kernel
	metrics metrics
}

// New opens the netlink sockets and changes nothing yet.
func New(cfg Config) (*Host, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("network setup: %w", err)
	}
	h := &Host{cfg: cfg}
	if h.metrics, err = newMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("network setup: register metrics: %w", err)
	}
	if h.Firewall, err = firewall.New(cfg.firewall()); err != nil {
		return nil, fmt.Errorf("network setup: %w", err)
	}
	if h.kernel, err = openKernel(cfg.NetNS); err != nil {
		return nil, fmt.Errorf("network setup: %w", err)
	}
	h.Addresses = newAddresses(cfg, cfg.identity(), h.kernel, h.metrics)
	h.Rules = newRules(cfg, cfg.identity())
	return h, nil
}

// Close closes the sockets. The addresses and rules stay, except for the rules
// that live only as long as their process: see Rules.Ensure.
func (h *Host) Close() error {
	h.Addresses.close()
	h.Firewall.Close()
	return errors.Join(h.Rules.close(), h.kernel.Close())
}

// RemoveOrphanedRules deletes the rules and accept rules of generations whose
// process has ended. It is for a process that wants no rules itself.
func (h *Host) RemoveOrphanedRules(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return errors.Join(h.Rules.removeOrphaned(), h.Firewall.RemoveOrphaned())
}

// ErrStillRunning means that a running process owns rules. The kernel removes them
// when it ends.
var ErrStillRunning = errors.New("its process still runs")

// InUse reports whether a process that runs owns the link or the rules on the host,
// whatever its addresses.
func InUse(ctx context.Context, cfg Config) (used bool, err error) {
	cfg.Registerer = nil
	h, err := New(cfg)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	s, err := h.Status(ctx)
	if err != nil {
		return false, err
	}
	claimed := func(c *owner.Claim, generation string) bool {
		return generation != "" && c.Claimed(owner.MarkOf(generation))
	}
	return claimed(h.Addresses.claim, s.Generation) || claimed(h.Rules.claim, s.Rules.Generation), nil
}

// Teardown removes everything of nodens from the host, of any generation, and
// nothing else. Config.Generation is not used. It is idempotent. A link of our name
// and type is ours even without a mark: a crash may have come before the mark, and
// node-cache sets none.
func Teardown(ctx context.Context, cfg Config) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cfg.Registerer = nil
	h, err := New(cfg)
	if err != nil {
		return err
	}
	return errors.Join(h.Firewall.RemoveAll(), h.Addresses.removeAll(), h.Rules.removeAll(), h.Close())
}
