package config

// BufSize is the bufsize directive.
type BufSize struct {
	Line int
	Size int // bytes, 512 to 4096; default 1232
}

const defaultBufSize = 1232

// parseBufSize reads bufsize [SIZE].
func parseBufSize(b *Block, s statement) error {
	if err := s.arity(0, 1, "[SIZE]"); err != nil {
		return err
	}
	size := &BufSize{Line: s.line, Size: defaultBufSize}
	if len(s.args) == 1 {
		var err error
		if size.Size, err = parseNumber("size", s.args[0].text, 512, 4096); err != nil {
			return s.fail(err)
		}
	}
	b.BufSize = size
	return s.noBlock()
}
