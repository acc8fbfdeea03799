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
		return s.errorf("except cannot be combined with several bind directives in one block")
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
			return o.unknown([]string{"except"}, nil)
		}
		return parseBindExcept(b, o)
	})
}

// leaveOut takes an address out of those of the block; of interfaces it is left
// out when they are expanded.
func (b *Block) leaveOut(addr string, o statement) error {
	i := slices.Index(b.Bind, addr)
	switch {
	case i >= 0 && len(b.Bind) == 1:
		return o.errorf("no address is left")
	case i >= 0:
		b.Bind = slices.Delete(b.Bind, i, i+1)
	case !slices.ContainsFunc(b.Bind, func(host string) bool { return !isAddress(host) }):
		o.warnf("%s is none of the addresses: nothing is left out", addr)
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
		return "", reason("%q: an IPv6 address is written without brackets here", text)
	}
	if isAddress(text) {
		return "", reason("%q: the port is not part of bind but of the zone, as in .:53", text)
	}
	// A name of the kernel's has at most 15 octets and no slash or colon.
	if len(text) > 15 || strings.ContainsAny(text, "/:[]{},") || isDigits(strings.ReplaceAll(text, ".", "")) {
		return "", reason("%q is neither an IP address nor the name of an interface", text)
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
		if err := b.leaveOut(addr.String(), o); err != nil {
			return err
		}
	}
	return nil
}
