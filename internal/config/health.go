package config

const defaultHealthAddr = ":8080"

// parseHealth reads health [HOST:PORT] and lameduck.
func parseHealth(b *Block, s statement) error {
	addr, err := listenArg(s, defaultHealthAddr)
	if err != nil {
		return err
	}
	b.Health = &Health{Line: s.line, Addr: addr}
	return s.eachOption(nil, func(o statement) error {
		if o.text != "lameduck" {
			return o.unknown()
		}
		return parseLameduck(b.Health, o)
	})
}

func parseLameduck(h *Health, o statement) error {
	if err := o.arity(1, 1, "DURATION"); err != nil {
		return err
	}
	var err error
	if h.Lameduck, err = parseDuration("duration", o.args[0].text); err != nil {
		return o.fail(err)
	}
	return nil
}
