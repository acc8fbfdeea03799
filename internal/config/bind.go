package config

import (
	"net/netip"
	"slices"
	"strings"
)

// parseBind adds to the addresses of earlier bind directives of the block.
func parseBind(b *Block, s statement) error {
	if err := s.arity(1, -1, "ADDRESS|INTERFACE…"); err != nil {
		return err
	}
	if len(b.BindExcept) > 0 || len(b.Bind) > 0 && len(s.block) > 0 {
		return s.errorf("except cannot be used in a block with several bind directives")
	}
	for _, arg := range s.args {
		host, err := parseBindHost(arg.text)
		if err != nil {
			return s.fail(err)
		}
		if slices.Contains(b.Bind, host) {
			return s.errorf("%s is given twice", host)
		}
		b.Bind = append(b.Bind, host)
	}
	return s.eachOption(func(name string) bool { return name == "except" }, func(o statement) error {
		if o.text != "except" {
			return o.unknown()
		}
		return parseBindExcept(b, o)
	})
}

// exclude removes an address from those of the block. Addresses of interfaces are
// excluded when the daemon reads the interfaces.
func (b *Block) exclude(addr string, o statement) error {
	i := slices.Index(b.Bind, addr)
	switch {
	case i >= 0 && len(b.Bind) == 1:
		return o.errorf("no address remains")
	case i >= 0:
		b.Bind = slices.Delete(b.Bind, i, i+1)
	case !slices.ContainsFunc(b.Bind, func(host string) bool { return !isAddress(host) }):
		o.warnf("%s is not one of the addresses: it has no effect", addr)
	}
	b.BindExcept = append(b.BindExcept, addr)
	return nil
}

// parseBindHost returns an address in its canonical form, or the name of an
// interface.
func parseBindHost(text string) (string, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.String(), nil
	}
	if unbracketed := strings.Trim(text, "[]"); isAddress(unbracketed) && unbracketed != text {
		return "", reason("%q: write the IPv6 address without brackets", text)
	}
	if isAddress(text) {
		return "", reason("%q: write the port at the zone, as in .:53", text)
	}
	// Interface names in Linux have at most 15 bytes and no slash or colon.
	if len(text) > 15 || strings.ContainsAny(text, "/:[]{},") || isDigits(strings.ReplaceAll(text, ".", "")) {
		return "", reason("%q is not an IP address or an interface name", text)
	}
	return text, nil
}

func parseBindExcept(b *Block, o statement) error {
	if err := o.arity(1, -1, "ADDRESS…"); err != nil {
		return err
	}
	for _, arg := range o.args {
		addr, err := netip.ParseAddr(arg.text)
		if err != nil {
			return o.errorf("%q is not an IP address", arg.text)
		}
		if err := b.exclude(addr.String(), o); err != nil {
			return err
		}
	}
	return nil
}
