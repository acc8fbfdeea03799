package config

import (
	"math"
	"time"
)

// CoreDNS's defaults and limits.
const (
	defaultMaxFails      = 2
	defaultExpire        = 10 * time.Second
	defaultCheckInterval = 500 * time.Millisecond
	maxUpstreams         = 15
)

func laterForwardOptions() []string {
	return []string{
		"doh_method", "failfast_all_unhealthy_upstreams", "failover", "max_age", "max_connect_attempts", "max_idle_conns",
		"next", "next_on_nodata", "read_timeout", "resolver", "source_address",
	}
}

// parseForward reads forward FROM TO… and its options.
func parseForward(b *Block, s statement) error {
	if err := s.arity(2, -1, "FROM TO…"); err != nil {
		return err
	}
	f := &Forward{
		Line:        s.line,
		Policy:      PolicyRandom,
		MaxFails:    defaultMaxFails,
		Expire:      defaultExpire,
		HealthCheck: HealthCheck{Interval: defaultCheckInterval, RecursionDesired: true, Domain: "."},
	}
	if err := parseFrom(f, s); err != nil {
		return err
	}
	for _, other := range b.Forwards {
		if other.From == f.From {
			s.warnf("not used: line %[2]d already forwards %[1]s", f.From, other.Line)
		}
	}
	b.Forwards = append(b.Forwards, f)
	if err := parseTo(f, s); err != nil {
		return err
	}
	return s.eachOption(func(name string) bool { return name == "except" }, f.parseOption)
}

func (f *Forward) parseOption(o statement) error {
	switch o.text {
	case "except":
		return parseExcept(f, o)
	case "force_tcp":
		return setFlag(o, &f.ForceTCP)
	case "prefer_udp":
		return setFlag(o, &f.PreferUDP)
	case "policy":
		return oneArg(o, "random|round_robin|sequential", &f.Policy, oneOf(PolicyRandom, PolicyRoundRobin, PolicySequential))
	case "max_fails":
		return oneArg(o, "NUMBER", &f.MaxFails, number("count", 0, math.MaxInt32))
	case "expire":
		return oneArg(o, "DURATION", &f.Expire, duration)
	case "health_check":
		return parseHealthCheck(f, o)
	case "max_concurrent":
		return oneArg(o, "NUMBER", &f.MaxConcurrent, number("limit", 0, math.MaxInt32))
	case "tls":
		return parseTLS(f, o)
	case "tls_servername":
		return parseTLSServerName(f, o)
	case "kubernetes_endpoints":
		return parseKubernetesEndpoints(f, o)
	}
	return o.unknown(laterForwardOptions()...)
}

func parseFrom(f *Forward, s statement) error {
	text := s.args[0].text
	zones, err := parseZones(text)
	if err != nil {
		return s.fail(err)
	}
	if len(zones) > 1 {
		return s.errorf("%s covers %d reverse zones: write a forward directive for each; the first is %s", text, len(zones), zones[0])
	}
	f.From = zones[0]
	return nil
}

func parseTo(f *Forward, s statement) error {
	to := s.args[1:]
	if len(to) > maxUpstreams {
		return s.errorf("%d upstreams are too many, the maximum is %d", len(to), maxUpstreams)
	}
	for _, arg := range to {
		u, err := parseUpstream(arg.text)
		if err != nil {
			return s.fail(err)
		}
		f.To = append(f.To, u)
	}
	return nil
}

func parseExcept(f *Forward, o statement) error {
	if err := o.arity(1, -1, "ZONES…"); err != nil {
		return err
	}
	zones, err := parseZoneList(o, 0)
	f.Except = append(f.Except, zones...)
	return err
}

// parseHealthCheck reads health_check DURATION [no_rec] [domain FQDN].
func parseHealthCheck(f *Forward, o statement) error {
	if err := o.arity(1, 4, "DURATION [no_rec] [domain NAME]"); err != nil {
		return err
	}
	h := HealthCheck{RecursionDesired: true, Domain: "."}
	var err error
	if h.Interval, err = parsePositiveDuration("interval", o.args[0].text); err != nil {
		return o.fail(err)
	}
	for args := o.args[1:]; len(args) > 0; args = args[1:] {
		switch {
		case args[0].text == "no_rec":
			h.RecursionDesired = false
		case args[0].text == "domain" && len(args) == 1:
			return o.errorf("the name after domain is missing")
		case args[0].text == "domain":
			if h.Domain, err = parseName(args[1].text); err != nil {
				return o.fail(err)
			}
			args = args[1:]
		default:
			return o.errorf("%q is not one of no_rec, domain", args[0].text)
		}
	}
	f.HealthCheck = h
	return nil
}

// parseTLS reads file names. As in CoreDNS, their meaning depends on their number:
// none, CA, CERT KEY, or CERT KEY CA.
func parseTLS(f *Forward, o statement) error {
	if err := o.arity(0, 3, "[CA | CERT KEY | CERT KEY CA]"); err != nil {
		return err
	}
	t := &TLS{}
	switch args := o.argTexts(); len(args) {
	case 1:
		t.CA = args[0]
	case 2:
		t.Cert, t.Key = args[0], args[1]
	case 3:
		t.Cert, t.Key, t.CA = args[0], args[1], args[2]
	}
	f.TLS = t
	return nil
}

// parseKubernetesEndpoints refuses TLS upstreams beside the endpoints, which are
// queried without TLS.
func parseKubernetesEndpoints(f *Forward, o statement) error {
	for _, u := range f.To {
		if u.TLS {
			return o.errorf("endpoints are queried without TLS, so %s cannot be used beside them", u)
		}
	}
	return setFlag(o, &f.KubernetesEndpoints)
}

func parseTLSServerName(f *Forward, o statement) error {
	if err := o.arity(1, 1, "NAME"); err != nil {
		return err
	}
	if err := checkServerName(o.args[0].text); err != nil {
		return o.fail(err)
	}
	f.TLSServerName = o.args[0].text
	return nil
}
