package netsetup

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// EnsureAccepts puts rules that accept the local IPs' DNS and health traffic at
// the head of every foreign chain that would drop it, and marks them with the
// generation: an accept in a table of ours would not overrule the drop. It is
// idempotent, and removes such rules where no chain needs them any more. Like
// addresses they come before the daemon asks itself, and go after it has
// drained: see EnsureRules for what comes last and goes first.
//
// A foreign chain is a base chain of type filter at input or output, of family
// ip, ip6 or inet, those of iptables-nft among them. It drops what its policy
// drops, or what a drop or reject without a condition ends, be it in a chain
// that it jumps to. Not covered, but named by Status where it can be seen:
//
//   - a chain at prerouting, or of another type;
//   - a table that a process owns (flag owner);
//   - a drop put before our rules later on: whoever does that means it;
//   - iptables-legacy, whose tables are no nftables tables.
//
// Neither covered nor named: a drop with a condition in a chain that does not
// drop by default, families netdev and bridge, and BPF.
func (h *Host) EnsureAccepts(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.mayEnsure(ctx); err != nil {
		return err
	}
	h.wantAccepts = true
	h.announce(objectAccepts)
	_, err := h.convergeAccepts()
	legacy, legacyErr := h.legacyFilters()
	for _, d := range legacy {
		h.sayDrops(d)
	}
	return errors.Join(err, legacyErr)
}

// sayDrops logs each once.
func (h *Host) sayDrops(d ForeignDrop) {
	if !h.saidDrops[d.What] {
		h.saidDrops[d.What] = true
		h.log.Warn("a firewall may drop DNS to the local IPs", "what", d.What, "why", d.Why)
	}
}

// RemoveAccepts removes the rules of this generation. Those that it adopted
// from one that still runs it hands back. It is idempotent.
func (h *Host) RemoveAccepts(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	h.wantAccepts = false
	h.withdraw(objectAccepts)
	return h.releaseAccepts()
}

// fitAttempts is how often a change starts again from reading, when what it
// read has changed or gone meanwhile.
const fitAttempts = 5

// isOutdated says whether a change came to nothing for that reason.
func isOutdated(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ERESTART) }

// convergeAccepts reports whether anything had to be changed.
func (h *Host) convergeAccepts() (changed bool, err error) {
	for range fitAttempts {
		var once bool
		once, err = h.fitAccepts()
		changed = changed || once
		if !isOutdated(err) {
			break
		}
	}
	return changed, err
}

// fitAccepts gives every foreign chain what it needs and takes away the rest,
// whatever generation that is of. One chain's failure does not keep it from
// the others.
func (h *Host) fitAccepts() (changed bool, err error) {
	chains, err := h.foreignChains()
	if err != nil {
		return false, err
	}
	h.rememberAccepts(chains)
	h.followChains(chains)
	drop := 0
	for _, c := range chains {
		one, fitErr := h.fitChain(c, c.accepts(h.cfg), everyGeneration)
		changed, err = changed || one, errors.Join(err, fitErr)
		if why := c.stillDrops(h.cfg); why != "" {
			drop++
			h.sayDrops(ForeignDrop{"chain " + c.String(), why})
		}
	}
	h.metrics.foreignDrops.Set(float64(drop))
	return changed, err
}

// everyGeneration is a condition on the generation of rules.
func everyGeneration(string) bool { return true }

// accepts is what we want to have in the chain.
func (c *foreignChain) accepts(cfg Config) []rule {
	if c.fate != drops || c.owned || c.kind != nftables.ChainTypeFilter {
		return nil
	}
	return cfg.acceptRules(c.table.family, c.hook)
}

// fitChain converges those of our rules in c whose generation mine accepts to
// want, in one transaction. They are at the chain's head when they come in;
// where others put theirs after that is not ours to judge. c stays as it is.
func (h *Host) fitChain(c *foreignChain, want []rule, mine func(generation string) bool) (changed bool, err error) {
	if same, err := sameRules(c.marked(mine), want); same || err != nil {
		return false, err
	}
	at, err := h.rulesetID()
	if err != nil {
		return false, err
	}
	now := *c
	if now.rules, err = h.dumpRulesOf(c.table, c.name); err != nil {
		return false, err
	}
	if err := h.replaceRules(at, c, now.marked(mine), want); err != nil {
		return false, fmt.Errorf("change accept rules in chain %s: %w", c, err)
	}
	return true, nil
}

// marked returns our rules in the chain.
func (c *foreignChain) marked(mine func(generation string) bool) (ours []dumpedRule) {
	for _, r := range c.rules {
		if g, ok := r.generation(); ok && mine(g) {
			ours = append(ours, r)
		}
	}
	return ours
}

// generation reads the mark of a rule, be it kept as nft keeps comments or, as
// after iptables-restore, as iptables does.
func (r dumpedRule) generation() (string, bool) {
	if comment, ok := userdata.GetString(r.userData, userdata.TypeComment); ok {
		if g, ok := generationOfAlias(comment); ok && generationPattern.MatchString(g) {
			return g, true
		}
	}
	for _, e := range r.exprs {
		if e.name != "match" || cString(nested(e.data, nftaMatchName)) != "comment" {
			continue
		}
		if g, ok := generationOfAlias(firstString(nested(e.data, nftaMatchInfo))); ok && generationPattern.MatchString(g) {
			return g, true
		}
	}
	return "", false
}
