package owner

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
)

var generationPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// CheckGeneration accepts 1 to 64 letters, digits, '.', '_' or '-'.
func CheckGeneration(generation string) error {
	if !generationPattern.MatchString(generation) {
		return fmt.Errorf("generation %q: want 1 to 64 letters, digits, '.', '_' or '-'", generation)
	}
	return nil
}

// commentPrefix begins a Comment; the generation follows.
const commentPrefix = "nodens generation "

// Comment is the mark of a generation as text: the alias of a link or the
// comment of a rule.
func Comment(generation string) string { return commentPrefix + generation }

// Generation reads a Comment. It returns false for any other text.
func Generation(comment string) (string, bool) {
	g, ok := strings.CutPrefix(comment, commentPrefix)
	if !ok || CheckGeneration(g) != nil {
		return "", false
	}
	return g, true
}

// Mark is the mark of a generation as the route metric of an address: the byte
// 'n' above 24 bits of the generation's digest. Administrators choose far
// smaller metrics, and the kernel's defaults are 0, 256 and 1024.
type Mark uint32

const markTag Mark = 'n' << 24

// MarkOf returns the mark of a generation.
func MarkOf(generation string) Mark {
	h := fnv.New32a()
	_, _ = h.Write([]byte(generation)) // never fails
	return markTag | Mark(h.Sum32()&0xffffff)
}

// Valid reports whether m is the mark of any generation.
func (m Mark) Valid() bool { return m&0xff000000 == markTag }

// String is the digest in hexadecimal.
func (m Mark) String() string { return fmt.Sprintf("#%06x", uint32(m)&0xffffff) }
