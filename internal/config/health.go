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
		return oneArg(o, "DURATION", &b.Health.Lameduck, duration)
	})
}
