package config

import (
	"net"
	"strings"
)

// parseDnstap reads dnstap SOCKET [full] and its options.
func parseDnstap(b *Block, s statement) error {
	if len(s.args) > 0 && s.args[0].text == "listen" {
		return s.errorf("listen is not supported: give the socket on which the reader listens, dnstap SOCKET")
	}
	if len(s.args) > 2 {
		return s.errorf("unexpected argument %q: the queue follows the memory limit, and the kernel sizes the write buffer; expected: dnstap SOCKET [full]", s.args[2].text)
	}
	if err := s.arity(1, 2, "SOCKET [full]"); err != nil {
		return err
	}
	d := &Dnstap{Line: s.line, Network: "unix"}
	if len(s.args) == 2 {
		if s.args[1].text != "full" {
			return s.errorf("unexpected argument %q, expected: dnstap SOCKET [full]", s.args[1].text)
		}
		d.Full = true
	}
	if err := d.setReader(s); err != nil {
		return err
	}
	b.Dnstap = append(b.Dnstap, d)
	return s.eachOption(nil, d.parseOption)
}

// setReader parses SOCKET.
func (d *Dnstap) setReader(s statement) error {
	scheme, rest, ok := strings.Cut(s.args[0].text, "://")
	if !ok {
		scheme, rest = "unix", s.args[0].text
	}
	d.Address = rest
	switch scheme {
	case "unix":
		if !strings.HasPrefix(rest, "/") {
			return s.errorf("%q is not an absolute path, tcp://HOST:PORT or tls://HOST:PORT", s.args[0].text)
		}
		if len(rest) > 107 { // struct sockaddr_un of the kernel's include/uapi/linux/un.h
			return s.errorf("the path %q is longer than 107 bytes", rest)
		}
		return nil
	case "tcp", "tls":
		d.Network, d.TLS = "tcp", scheme == "tls"
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" {
			return s.errorf("%q is not %s://HOST:PORT", s.args[0].text, scheme)
		}
		if _, err := net.LookupPort("tcp", port); err != nil {
			return s.errorf("%q is not a port", port)
		}
		return nil
	}
	return s.errorf("%q: the scheme is not unix, tcp or tls", s.args[0].text)
}

func (d *Dnstap) parseOption(o statement) error {
	if o.text == "skipverify" {
		d.SkipVerify = true
		if !d.TLS {
			o.warnf("has no effect without tls://")
		}
		return o.arity(0, 0, "")
	}
	if o.text != "identity" && o.text != "version" && o.text != "extra" {
		return o.unknown("tls")
	}
	if err := o.arity(1, 1, strings.ToUpper(o.text)); err != nil {
		return err
	}
	value := o.args[0].text
	switch o.text {
	case "identity":
		d.Identity = value
	case "version":
		d.Version = value
	case "extra":
		if strings.Contains(value, "{") {
			return o.errorf("labels such as {type} are not supported: the fields of the message have these values")
		}
		d.Extra = value
	}
	return nil
}
