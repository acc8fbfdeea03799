package bpf

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nodens-dns/nodens/internal/lab"
)

func eps(list ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range list {
		out = append(out, ap(s))
	}
	return out
}

func TestConfigErrors(t *testing.T) {
	good := func() RedirectConfig {
		return RedirectConfig{Cgroup: "/cg", Services: []Service{{VIP: ap(vip4), Target: ap(target4)}}}
	}
	for _, tc := range []struct {
		name   string
		change func(*RedirectConfig)
		want   string // empty: no error
	}{
		{"good", func(*RedirectConfig) {}, ""},
		{"v4-mapped", func(c *RedirectConfig) { c.Services[0].VIP = ap("[::ffff:169.254.20.10]:53") }, ""},
		{"no cgroup", func(c *RedirectConfig) { c.Cgroup = "" }, "no cgroup given"},
		{"no services", func(c *RedirectConfig) { c.Services = nil }, "0 services: not between 1 and 64"},
		{"short timeout", func(c *RedirectConfig) { c.HeartbeatTimeout = 299 * time.Millisecond }, "heartbeat timeout 299ms: not between 300ms and 500ms"},
		{"long timeout", func(c *RedirectConfig) { c.HeartbeatTimeout = time.Second }, "heartbeat timeout 1s: not between"},
		{"twice", func(c *RedirectConfig) { c.Services = append(c.Services, c.Services[0]) }, "service 169.254.20.10:53: given twice"},
		{"no port", func(c *RedirectConfig) { c.Services[0].VIP = ap("10.0.0.1:0") }, "10.0.0.1:0: not an address and a port"},
		{"no VIP", func(c *RedirectConfig) { c.Services[0].VIP = netip.AddrPort{} }, "not an address and a port"},
		{"any address", func(c *RedirectConfig) { c.Services[0].Target = ap("0.0.0.0:53") }, "0.0.0.0:53: not a unicast address"},
		{"multicast", func(c *RedirectConfig) { c.Services[0].VIP = ap("[ff02::fb]:5353") }, "not a unicast address"},
		{"zone", func(c *RedirectConfig) { c.Services[0].VIP = ap("[fe80::1%eth0]:53") }, "has a zone"},
		{"families", func(c *RedirectConfig) { c.Services[0].Target = ap(target6) }, "target [fd00::2]:10053 is of the other address family"},
		{"families of fallbacks", func(c *RedirectConfig) { c.Services[0].Fallbacks = eps(core6) }, "fallback [fd00::3]:53 is of the other address family"},
		{"fallback to itself", func(c *RedirectConfig) { c.Services[0].Fallbacks = eps(vip4) }, "is its own fallback"},
		{"bad fallback", func(c *RedirectConfig) { c.Services[0].Fallbacks = eps("224.0.0.1:53") }, "fallback: 224.0.0.1:53: not a unicast address"},
		{"fallbacks and pass-through", func(c *RedirectConfig) {
			c.Services[0].Fallbacks = eps(core4)
			c.Services[0].PassThrough = true
		}, "choose one"},
		{"fallback to a VIP", func(c *RedirectConfig) {
			c.Services = append(c.Services, Service{VIP: ap(cluster4), Target: ap(target4), Fallbacks: eps(vip4)})
		}, "service 10.96.0.10:53: goes to 169.254.20.10:53, which is redirected itself"},
		{"ports", func(c *RedirectConfig) {
			for _, port := range []uint16{1, 2, 3, 4} {
				c.Services = append(c.Services, Service{VIP: netip.AddrPortFrom(ap(vip4).Addr(), port), Target: ap(target4)})
			}
		}, "services have 5 different ports: at most 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := good()
			tc.change(&cfg)
			_, err := cfg.withDefaults()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// withDefaults leaves the caller's slice unchanged.
func TestConfigIsCopied(t *testing.T) {
	mapped := ap("[::ffff:169.254.20.10]:53")
	cfg := RedirectConfig{Cgroup: "/cg", Services: []Service{{VIP: mapped, Target: ap(target4)}}}
	got, err := cfg.withDefaults()
	check(t, err)
	if cfg.Services[0].VIP != mapped || got.Services[0].VIP != ap(vip4) {
		t.Errorf("caller's %v, ours %v", cfg.Services[0].VIP, got.Services[0].VIP)
	}
	if got.PinDir != DefaultPinDir || got.HeartbeatTimeout != DefaultHeartbeatTimeout || got.Logger == nil {
		t.Errorf("defaults: %+v", got)
	}
}

func TestFallbacksAreTrimmed(t *testing.T) {
	many := eps("10.0.0.1:53", "[::ffff:10.0.0.1]:53")
	for i := range byte(20) {
		many = append(many, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, i}), 53))
	}
	got, err := checkFallbacks(ap(vip4), many)
	check(t, err)
	if len(got) != MaxFallbacks || got[0] != ap("10.0.0.1:53") || got[1] != ap("10.0.1.0:53") {
		t.Errorf("fallbacks %v", got)
	}
}

func TestSetFallbacksErrors(t *testing.T) {
	p := newPod(t)
	r := open(t, p.config(t))
	for _, tc := range []struct {
		vip  string
		eps  []netip.AddrPort
		want string
	}{
		{"1.2.3.4:53", nil, "set fallbacks of 1.2.3.4:53: not a service that has fallbacks"},
		{cluster4, eps(core4), "not a service that has fallbacks"},
		{vip4, eps(core6), "fallback [fd00::3]:53 is of the other address family"},
		{vip4, eps(cluster4), "10.96.0.10:53 is redirected itself"},
	} {
		if err := r.SetFallbacks(ap(tc.vip), tc.eps); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("SetFallbacks(%s, %v): %v, want %q", tc.vip, tc.eps, err, tc.want)
		}
	}
	check(t, r.SetFallbacks(ap("[::ffff:169.254.20.10]:53"), nil))
	check(t, r.Close())
	check(t, r.Close())
	for name, err := range map[string]error{
		"SetFallbacks": r.SetFallbacks(ap(vip4), nil),
		"Alive":        r.Alive(),
		"Attach":       r.Attach(),
		"OptOut":       r.OptOut(1),
		"OptIn":        r.OptIn(1),
	} {
		if err == nil || !strings.Contains(err.Error(), os.ErrClosed.Error()) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	_, _ = r.Beat(0)
}

func TestEndpointRoundTrip(t *testing.T) {
	for _, want := range eps(vip4, vip6, target4, target6, "1.2.3.4:65535", "[::1]:1") {
		e := toEndpoint(want)
		if got := fromEndpoint(e); got != want {
			t.Errorf("%v became %v", want, got)
		}
		if e.Pad != 0 {
			t.Errorf("%v: padding %d", want, e.Pad)
		}
	}
}

// The settings in the kernel's map.
func TestSettings(t *testing.T) {
	lab.NeedBPF(t)
	cfg := RedirectConfig{
		Cgroup: lab.NewKubepods(t), PinDir: lab.BPFFS + "/" + t.Name(), HeartbeatTimeout: 345 * time.Millisecond,
		Services: []Service{{VIP: ap("[::ffff:10.0.0.1]:853"), Target: ap(target4)}, {VIP: ap(vip4), Target: ap(target4)}},
	}
	r, err := OpenRedirect(cfg)
	check(t, err)
	defer func() { check(t, r.Close()); check(t, Teardown(cfg.PinDir)) }()
	var set redirectSettings
	check(t, r.objs.Config.Lookup(uint32(0), &set))
	ports := map[uint16]bool{}
	for _, port := range set.Ports {
		ports[networkPort(port)] = true
	}
	if set.HeartbeatTimeout != 345e6 || set.OptedOut != 0 || len(ports) != 3 || !ports[53] || !ports[853] || !ports[0] {
		t.Errorf("settings %+v", set)
	}
}
