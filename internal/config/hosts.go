package config

import (
	"net/netip"
	"strings"
	"time"
)

// CoreDNS's defaults and limits.
const (
	defaultHostsPath   = "/etc/hosts"
	defaultHostsTTL    = 3600
	maxHostsTTL        = 65535
	defaultHostsReload = 5 * time.Second
)

// parseHosts reads hosts [FILE [ZONES…]], its options and inline entries.
func parseHosts(b *Block, s statement) error {
	h := &Hosts{Line: s.line, Path: defaultHostsPath, TTL: defaultHostsTTL, Reload: defaultHostsReload}
	if len(s.args) > 0 {
		h.Path = s.args[0].text
	}
	var err error
	if h.Zones, err = parseZoneList(s, 1); err != nil {
		return err
	}
	b.Hosts = h
	isEntry := func(name string) bool {
		_, err := parseHostsAddr(name)
		return err == nil
	}
	if err := s.eachOption(isEntry, h.parseOption); err != nil {
		return err
	}
	if h.FallthroughUnsupported && len(h.Fallthrough) == 0 {
		return s.errorf("fallthrough_unsupported needs the option fallthrough")
	}
	return nil
}

func (h *Hosts) parseOption(o statement) error {
	switch o.text {
	case "ttl":
		return parseHostsTTL(h, o)
	case "no_reverse":
		h.NoReverse = true
		o.surplus(0)
		return nil
	case "reload":
		return oneArg(o, "DURATION", &h.Reload, duration)
	case "fallthrough":
		return parseFallthrough(h, o)
	case "fallthrough_unsupported":
		return setFlag(o, &h.FallthroughUnsupported)
	}
	if strings.Trim(o.text, "0123456789abcdefABCDEF.:%") == "" && strings.ContainsAny(o.text, ".:") {
		return parseHostsEntry(h, o)
	}
	if addr, err := parseHostsAddr(o.text); err == nil && addr.IsValid() {
		return parseHostsEntry(h, o)
	}
	return o.unknown()
}

func parseHostsTTL(h *Hosts, o statement) error {
	o.surplus(1)
	if err := o.arity(1, 1, "SECONDS"); err != nil {
		return err
	}
	n, err := parseNumber("TTL", o.args[0].text, 1, maxHostsTTL)
	if err != nil {
		return o.fail(err)
	}
	h.TTL = uint32(n)
	return nil
}

func parseFallthrough(h *Hosts, o statement) error {
	var err error
	h.Fallthrough, err = fallthroughZones(o)
	return err
}

// parseHostsAddr reads an address. It drops the zone of a link-local address,
// because an answer cannot carry a zone.
func parseHostsAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	return addr.WithZone(""), err
}

func parseHostsEntry(h *Hosts, o statement) error {
	addr, err := parseHostsAddr(o.text)
	if err != nil {
		return o.errorf("not an IP address")
	}
	if len(o.args) == 0 {
		o.warnf("an address without names has no effect")
		return nil
	}
	e := HostsEntry{Addr: addr}
	for _, arg := range o.args {
		name, err := parseName(arg.text)
		if err != nil {
			return o.fail(err)
		}
		e.Names = append(e.Names, name)
	}
	h.Inline = append(h.Inline, e)
	return nil
}
