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
		return parseMonitor(o)
	})
}

// parseMonitor reads monitor. Only SIGTERM ends readiness, so both values mean the
// same.
func parseMonitor(o statement) error {
	if err := o.arity(1, 1, "until-ready|continuously"); err != nil {
		return err
	}
	if w := o.args[0].text; w != "until-ready" && w != "continuously" {
		return o.errorf("%q is not one of until-ready, continuously", w)
	}
	return nil
}
