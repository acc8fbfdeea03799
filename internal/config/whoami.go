package config

import "strings"

// NSID is the nsid directive.
type NSID struct {
	Line int
	Text string // empty: the name of the host
}

// maxNSID keeps the option from crowding replies, in octets.
const maxNSID = 128

// parseNSID reads nsid [TEXT…]; the words are joined by a space.
func parseNSID(b *Block, s statement) error {
	n := &NSID{Line: s.line, Text: strings.Join(s.argTexts(), " ")}
	if len(n.Text) > maxNSID {
		return s.errorf("the text has %d octets, at most %d are allowed", len(n.Text), maxNSID)
	}
	b.NSID = n
	return s.noBlock()
}

// parseWhoami reads whoami.
func parseWhoami(b *Block, s statement) error {
	b.Whoami = true
	return bare(s)
}
