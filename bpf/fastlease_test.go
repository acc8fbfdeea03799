package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TestPassedOn: the daemon learns on which interface a query was passed, by its client,
// port and ID.
func TestPassedOn(t *testing.T) {
	f, p, seen := openTestFastpath(t, 512), newPackets(1, 50), make(map[bool]bool)
	p.put(t, f)
	for range 200 {
		in := p.query()
		if _, m := p.expect(in); m == nil {
			continue
		}
		l4, src := 34, in[26:30]
		v6 := in[12] == 0x86
		if v6 {
			l4, src = 54, in[22:38]
		}
		addr, _ := netip.AddrFromSlice(src)
		from, id := netip.AddrPortFrom(addr, binary.BigEndian.Uint16(in[l4:])), binary.BigEndian.Uint16(in[l4+8:])
		if !isNoted(t, f, in, from, id) {
			t.Fatalf("the daemon does not learn where a query of %v was passed", from)
		}
		if f.PassedOn(from, id+1) != 0 || f.PassedOn(netip.AddrPortFrom(addr, from.Port()+1), id) != 0 {
			t.Fatal("the daemon takes another query for one that was passed")
		}
		seen[v6] = true
	}
	if !seen[false] || !seen[true] {
		t.Error("the packets do not cover both families")
	}
}

// isNoted runs a query that is passed, again if the machine was too slow to read the note.
func isNoted(t *testing.T, f *Fastpath, in []byte, from netip.AddrPort, id uint16) bool {
	t.Helper()
	out := make([]byte, 2048)
	for range 20 {
		if code, _ := runPacket(t, f.objs.Fastpath, in, out); code != tcNext {
			t.Fatalf("result %d for a client without a lease", code)
		}
		if f.PassedOn(from, id) == 1 {
			return true
		}
	}
	return false
}
