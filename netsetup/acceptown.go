package netsetup

import (
	"errors"
	"slices"
)

// rememberAccepts is called before marks of another generation are overwritten.
func (h *Host) rememberAccepts(chains []*foreignChain) {
	if g := otherAccepts(chains, h.cfg.Generation); g != "" {
		h.before.accepts = g
	}
}

// otherAccepts is the first generation besides own that has marked a rule, or
// "".
func otherAccepts(chains []*foreignChain, own string) string {
	for _, c := range chains {
		for _, r := range c.rules {
			if g, ok := r.generation(); ok && g != own {
				return g
			}
		}
	}
	return ""
}

func (h *Host) acceptsAdoptedBy() (string, error) {
	chains, err := h.foreignChains()
	if err != nil {
		return "", err
	}
	return h.heldBy(objectAccepts, otherAccepts(chains, h.cfg.Generation)), nil
}

// releaseAccepts hands our accept rules back or deletes them.
func (h *Host) releaseAccepts() error {
	p := h.before.accepts
	h.before.accepts = ""
	own := func(g string) bool { return g == h.cfg.Generation }
	if p == "" {
		return h.rewriteAccepts("", own)
	}
	kept, err := h.handedBack(objectAccepts, markOf(p), func() error { return h.rewriteAccepts(p, own) })
	if kept {
		h.log.Info("network setup handed back", "object", objectAccepts, "generation", p)
		return nil
	}
	return errors.Join(err, h.rewriteAccepts("", func(g string) bool { return own(g) || g == p }))
}

// rewriteAccepts gives the rules of the generations that mine accepts to
// another one, or, where to is empty, deletes them. The receiver's own stay.
func (h *Host) rewriteAccepts(to string, mine func(generation string) bool) (err error) {
	for range fitAttempts {
		err = h.rewriteAcceptsOnce(to, mine)
		if !isOutdated(err) {
			break
		}
	}
	return err
}

func (h *Host) rewriteAcceptsOnce(to string, mine func(generation string) bool) error {
	chains, err := h.foreignChains()
	if err != nil {
		return err
	}
	heir := h.cfg
	heir.Generation = to
	for _, c := range chains {
		if len(c.marked(mine)) == 0 {
			continue
		}
		var want []rule
		if to != "" && len(c.marked(func(g string) bool { return g == to })) == 0 {
			want = c.accepts(heir)
		}
		_, fitErr := h.fitChain(c, want, mine)
		err = errors.Join(err, fitErr)
	}
	return err
}

// followChains makes the rules of these chains, and of those that they run,
// concern Watch.
func (h *Host) followChains(chains []*foreignChain) {
	follow := make(map[tableID][]string)
	for _, c := range chains {
		follow[c.table] = append(follow[c.table], c.reads...)
	}
	for _, names := range follow {
		slices.Sort(names)
	}
	h.followed.Store(&follow)
}
