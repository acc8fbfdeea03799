package bpf

import (
	"encoding/binary"
	"net/netip"
)

// toEndpoint returns ap as struct endpoint: network byte order, IPv4 as v4-mapped.
func toEndpoint(ap netip.AddrPort) redirectEndpoint {
	var e redirectEndpoint
	raw := ap.Addr().As16()
	for i := range e.Addr {
		e.Addr[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	e.Port = networkPort(ap.Port())
	return e
}

func fromEndpoint(e redirectEndpoint) netip.AddrPort {
	var raw [16]byte
	for i, word := range e.Addr {
		binary.NativeEndian.PutUint32(raw[4*i:], word)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(raw).Unmap(), networkPort(e.Port))
}

// networkPort converts between host and network byte order, in both directions.
func networkPort(port uint16) uint16 {
	var raw [2]byte
	binary.BigEndian.PutUint16(raw[:], port)
	return binary.NativeEndian.Uint16(raw[:])
}
