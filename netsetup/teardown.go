package netsetup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
)

// ErrStillRunning says that a live process owns rules, which only its end
// removes.
var ErrStillRunning = errors.New("its process still runs")

// Teardown removes everything of ours from the host, of whatever generation,
// and leaves the rest alone. Config.Generation is not used. It is idempotent.
// A link of our name and type is ours even without a mark: a crash may have
// come before the mark, and node-cache sets none.
func Teardown(ctx context.Context, cfg Config) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	cfg.Registerer = nil
	h, err := New(cfg)
	if err != nil {
		return err
	}
	h.mu.Lock()
	err = errors.Join(
		h.deleteTable(everyGeneration),
		h.rewriteAccepts("", everyGeneration),
		h.deleteLink(func(string) bool { return true }),
		h.deleteMarkedLinks(),
		h.deleteFromLo(addrMark.ours),
		h.reportLiveTables(),
	)
	h.mu.Unlock()
	return errors.Join(err, h.Close())
}

// reportLiveTables fails if tables of running processes are left.
func (h *Host) reportLiveTables() error {
	names, err := h.liveTables()
	for _, name := range names {
		err = errors.Join(err, fmt.Errorf("delete nftables table inet %s: %w", name, ErrStillRunning))
	}
	return err
}

// liveTables names the owned tables of every generation.
func (h *Host) liveTables() (names []string, err error) {
	conn, err := h.nft()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("read nftables tables: %w", err)
	}
	for _, t := range tables {
		if strings.HasPrefix(t.Name, livePrefix) {
			names = append(names, t.Name)
		}
	}
	return names, nil
}
