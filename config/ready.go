package config

const defaultReadyAddr = ":8181"

// parseReady reads ready [HOST:PORT].
func parseReady(b *Block, s statement) error {
	addr, err := listenArg(s, defaultReadyAddr)
	if err != nil {
		return err
	}
	b.Ready = &Ready{Line: s.line, Addr: addr}
	return s.eachOption(nil, func(o statement) error {
		return o.unknown(nil, []string{"monitor"})
	})
}
