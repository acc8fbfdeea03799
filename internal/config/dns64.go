package config

import "net/netip"

// DNS64 is the dns64 directive.
type DNS64 struct {
	Line         int
	Prefix       netip.Prefix // default 64:ff9b::/96
	TranslateAll bool
	AllowIPv4    bool
}

// parseDNS64 reads dns64 [PREFIX] and its options.
func parseDNS64(b *Block, s statement) error {
	if err := s.arity(0, 1, "[PREFIX]"); err != nil {
		return err
	}
	d := &DNS64{Line: s.line, Prefix: netip.MustParsePrefix("64:ff9b::/96")}
	if len(s.args) == 1 {
		if err := d.parsePrefix(s); err != nil {
			return err
		}
	}
	b.DNS64 = d
	return s.eachOption(func(string) bool { return true }, d.parseOption)
}

func (d *DNS64) parseOption(o statement) error {
	switch o.text {
	case "prefix":
		if err := o.arity(1, 1, "PREFIX"); err != nil {
			return err
		}
		return d.parsePrefix(o)
	case "translate_all":
		return setFlag(o, &d.TranslateAll)
	case "allow_ipv4":
		return setFlag(o, &d.AllowIPv4)
	}
	return o.unknown()
}

// parsePrefix accepts the prefix lengths of RFC 6052, section 2.2.
func (d *DNS64) parsePrefix(s statement) error {
	text := s.args[0].text
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4() {
		return s.errorf("%q is not an IPv6 prefix such as 64:ff9b::/96", text)
	}
	switch p.Bits() {
	case 32, 40, 48, 56, 64, 96:
		d.Prefix = p.Masked()
		return nil
	}
	return s.errorf("prefix %s: the length must be 32, 40, 48, 56, 64 or 96 (RFC 6052, section 2.2)", text)
}

func (d *DNS64) describe() []string {
	return []string{
		"prefix " + d.Prefix.String(), "translate_all " + onOff(d.TranslateAll), "allow_ipv4 " + onOff(d.AllowIPv4),
	}
}
