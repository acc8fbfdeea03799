package daemon

import (
	"slices"

	"github.com/nodens-dns/nodens/internal/config"
)

// RedirectSettings returns the settings of redirection. For each setting, the
// Corefile takes precedence over the flags.
func (o *Options) RedirectSettings(cfg *config.Config) config.Redirect {
	s := o.Redirect.Redirect
	if s.Mode == "" {
		s.Mode = config.RedirectOff
	}
	c := cfg.Redirect()
	if c == nil {
		return s
	}
	s.File, s.Line, s.Mode = c.File, c.Line, c.Mode
	s.Targets = either(c.Targets, s.Targets)
	s.Services = either(c.Services, s.Services)
	s.Fallbacks = either(c.Fallbacks, s.Fallbacks)
	s.OptOut = either(c.OptOut, s.OptOut)
	s.Uplinks = either(c.Uplinks, s.Uplinks)
	if c.Kubepods != "" {
		s.Kubepods = c.Kubepods
	}
	if c.Heartbeat != 0 {
		s.Heartbeat = c.Heartbeat
	}
	return s
}

func either[T any](first, second []T) []T {
	if len(first) > 0 {
		return first
	}
	return second
}

// overruledFlags lists the flags whose value the redirect directive replaces.
func (o *Options) overruledFlags(cfg source) []string {
	c, f := cfg.Redirect(), o.Redirect.Redirect
	if c == nil {
		return nil
	}
	var names []string
	add := func(name string, overruled bool) {
		if overruled {
			names = append(names, "-"+name)
		}
	}
	differ := func(flag, corefile string) bool { return flag != "" && corefile != "" && flag != corefile }
	add("redirect", differ(string(f.Mode), string(c.Mode)))
	add("redirect-target", bothAndDiffer(f.Targets, c.Targets))
	add("redirect-service", bothAndDiffer(f.Services, c.Services))
	add("redirect-fallback", bothAndDiffer(f.Fallbacks, c.Fallbacks))
	add("redirect-opt-out", bothAndDiffer(f.OptOut, c.OptOut))
	add("redirect-uplink", bothAndDiffer(f.Uplinks, c.Uplinks))
	add("redirect-heartbeat", f.Heartbeat != 0 && c.Heartbeat != 0 && f.Heartbeat != c.Heartbeat)
	add("kubepods", differ(f.Kubepods, c.Kubepods))
	return names
}

func bothAndDiffer[T comparable](a, b []T) bool {
	return len(a) > 0 && len(b) > 0 && !slices.Equal(a, b)
}
