package config

import "net/netip"

// LoadBalance is the loadbalance directive.
type LoadBalance struct {
	Line   int
	Prefer []netip.Prefix // networks whose addresses come first
}

// parseLoadBalance reads loadbalance [round_robin] and its options.
func parseLoadBalance(b *Block, s statement) error {
	if err := s.arity(0, -1, ""); err != nil {
		return err
	}
	if len(s.args) > 0 {
		switch policy := s.args[0].text; policy {
		case "round_robin":
			if err := s.arity(0, 1, "[round_robin]"); err != nil {
				return err
			}
		case "weighted":
			return s.errorf("policy weighted is not supported: use round_robin")
		default:
			return s.errorf("policy %q is not round_robin", policy)
		}
	}
	l := &LoadBalance{Line: s.line}
	b.LoadBalance = l
	return s.eachOption(func(string) bool { return true }, func(o statement) error {
		if o.text != "prefer" {
			return o.unknown()
		}
		return l.parsePrefer(o)
	})
}

func (l *LoadBalance) parsePrefer(o statement) error {
	if err := o.arity(1, -1, "NETWORK…"); err != nil {
		return err
	}
	for _, text := range o.argTexts() {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return o.errorf("%q is not a network such as 10.0.0.0/8", text)
		}
		l.Prefer = append(l.Prefer, p.Masked())
	}
	return nil
}

func (l *LoadBalance) describe() []string {
	nets := make([]string, len(l.Prefer))
	for i, n := range l.Prefer {
		nets[i] = n.String()
	}
	return []string{"round_robin", "prefer " + wordsOr(nets, "none")}
}
