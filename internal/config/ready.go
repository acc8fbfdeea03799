package config

const defaultReadyAddr = ":8181"

// parseReady reads ready [HOST:PORT] and monitor.
func parseReady(b *Block, s statement) error {
	addr, err := listenArg(s, defaultReadyAddr)
	if err != nil {
		return err
	}
	b.Ready = &Ready{Line: s.line, Addr: addr}
	return s.eachOption(nil, func(o statement) error {
		if o.text != "monitor" {
			return o.unknown()
		}
		var ignored string // only SIGTERM ends readiness, so both values mean the same
		return oneArg(o, "until-ready|continuously", &ignored, oneOf("until-ready", "continuously"))
	})
}
