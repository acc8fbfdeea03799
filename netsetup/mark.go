package netsetup

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// aliasPrefix begins the alias of our link; the generation follows.
const aliasPrefix = "nodens generation "

func aliasOf(generation string) string { return aliasPrefix + generation }

// generationOfAlias returns false for an alias that no generation set, as that
// of a link which node-cache left.
func generationOfAlias(alias string) (string, bool) {
	return strings.CutPrefix(alias, aliasPrefix)
}

// addrMark is the route metric of an address on lo: the byte 'n' above 24 bits
// of the generation's digest. Metrics that people choose are far smaller, and
// the kernel's own defaults are 0, 256 and 1024.
type addrMark uint32

const addrMarkTag addrMark = 'n' << 24

func markOf(generation string) addrMark {
	h := fnv.New32a()
	_, _ = h.Write([]byte(generation)) // never fails
	return addrMarkTag | addrMark(h.Sum32()&0xffffff)
}

// ours tells a mark of any generation from a foreign metric.
func (m addrMark) ours() bool { return m&0xff000000 == addrMarkTag }

// String is the digest in hexadecimal.
func (m addrMark) String() string { return fmt.Sprintf("#%06x", uint32(m)&0xffffff) }
