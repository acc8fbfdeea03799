package outage

import "encoding/binary"

const (
	typeA    = 1
	typeAAAA = 28

	rcodeServFail = 2
	rcodeNXDomain = 3

	headerLen = 12
)

// question makes a query with recursion desired. name has its labels without
// length octets, separated by dots.
func question(id uint16, name string, qtype uint16) []byte {
	m := binary.BigEndian.AppendUint16(make([]byte, 0, 64), id)
	m = append(m, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	for start, i := 0, 0; i <= len(name); i++ {
		if i == len(name) || name[i] == '.' {
			m = append(m, byte(i-start))
			m = append(m, name[start:i]...)
			start = i + 1
		}
	}
	return append(m, 0, 0, byte(qtype), 0, 1)
}

// questionOf returns the type of the question and its end; 0 if m has no question.
func questionOf(m []byte) (qtype uint16, end int) {
	i := headerLen
	for i < len(m) && m[i] != 0 {
		i += int(m[i]) + 1
	}
	if i+5 > len(m) {
		return 0, 0
	}
	return binary.BigEndian.Uint16(m[i+1:]), i + 5
}

// reply answers query, whose question ends at end, with one address for A, an
// SOA for everything else and for NXDOMAIN. It has no OPT record.
func reply(query []byte, end int, qtype, rcode uint16) []byte {
	m := append(make([]byte, 0, end+80), query[:end]...)
	binary.BigEndian.PutUint16(m[2:], 0x8180|rcode)
	clear(m[6:headerLen])
	if qtype == typeA && rcode == 0 {
		m[7] = 1
		return append(m, 0xc0, headerLen, 0, typeA, 0, 1, 0, 0, 14, 16, 0, 4, 192, 0, 2, 1)
	}
	m[9] = 1
	m = append(m, 0, 0, 6, 0, 1, 0, 0, 0, 30, 0, 22, 0, 0)
	for range 5 {
		m = append(m, 0, 0, 0, 30)
	}
	return m
}
