package config

const defaultPrometheusAddr = "localhost:9153"

// parsePrometheus reads prometheus [HOST:PORT].
func parsePrometheus(b *Block, s statement) error {
	addr, err := listenArg(s, defaultPrometheusAddr)
	if err != nil {
		return err
	}
	b.Prometheus = &Prometheus{Line: s.line, Addr: addr}
	return s.eachOption(nil, func(o statement) error {
		return o.unknown("tls")
	})
}
