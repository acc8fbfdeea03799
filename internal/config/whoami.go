package config

import "strings"

// NSID is the nsid directive.
type NSID struct {
	Line int
	Text string // empty: the host name
}

// maxNSID limits the text, in bytes, to leave room in replies.
const maxNSID = 128

// parseNSID reads nsid [TEXT…] and joins the words with spaces.
func parseNSID(b *Block, s statement) error {
	n := &NSID{Line: s.line, Text: strings.Join(s.argTexts(), " ")}
	if len(n.Text) > maxNSID {
		return s.errorf("the text has %d bytes, the maximum is %d", len(n.Text), maxNSID)
	}
	b.NSID = n
	return s.noBlock()
}

// parseWhoami reads whoami.
func parseWhoami(b *Block, s statement) error {
	b.Whoami = true
	return bare(s)
}
