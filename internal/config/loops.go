package config

import (
	"errors"
	"net/netip"
	"slices"
)

// HasSource reports whether a directive of b can give answers.
func (b *Block) HasSource() bool {
	return len(b.Forwards) > 0 || len(b.Templates) > 0 || b.Hosts != nil || b.Sample || b.Whoami
}

// withoutSource warns of blocks that can only answer REFUSED.
func (c *Config) withoutSource() []error {
	var warnings []error
	for _, b := range c.Blocks {
		if !b.HasSource() && len(b.ACL) == 0 {
			warnings = append(warnings, token{file: b.File, line: b.Line}.errorf(
				"no directive of this block gives answers (forward, hosts, template): its queries fail"))
		}
	}
	return warnings
}

// Loops reports the forwards to an address on which the same block is served. Zones
// without a port are served on port.
func (c *Config) Loops(port uint16) error {
	var errs []error
	for _, b := range c.Blocks {
		for _, f := range b.Forwards {
			for _, to := range f.To {
				if b.serves(to.Addr, port) {
					errs = append(errs, &Error{File: b.File, Line: f.Line, Directive: "forward", Err: reason(
						"%v is an address of this block (bind), so its queries would come back to it: name the server that has the answers", to.Addr)})
				}
			}
		}
	}
	return errors.Join(errs...)
}

// serves reports whether the block is bound to addr.
func (b *Block) serves(addr netip.AddrPort, port uint16) bool {
	return slices.ContainsFunc(b.Bind, func(s string) bool {
		ip, err := netip.ParseAddr(s)
		return err == nil && ip == addr.Addr()
	}) && slices.ContainsFunc(b.Zones, func(z Zone) bool {
		return z.Port == addr.Port() || z.Port == 0 && port == addr.Port()
	})
}
