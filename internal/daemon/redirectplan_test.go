package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
)

// The bounds in config, which must not import bpf, are those of bpf.
func TestHeartbeatBounds(t *testing.T) {
	if config.MinRedirectHeartbeat != bpf.MinHeartbeatTimeout || config.MaxRedirectHeartbeat != bpf.MaxHeartbeatTimeout {
		t.Error("config and bpf differ")
	}
	for _, d := range []time.Duration{0, bpf.MinHeartbeatTimeout, bpf.MaxHeartbeatTimeout} {
		timeout := d
		if d == 0 {
			timeout = bpf.DefaultHeartbeatTimeout
		}
		if 3*beatInterval(d) > timeout {
			t.Errorf("heartbeat %v: one lost question makes a daemon that is well count as hung", d)
		}
	}
}

// plan works out what flags and a Corefile ask for.
func plan(t *testing.T, corefile, flags string, env map[string]string) (redirectPlan, *daemon) {
	t.Helper()
	o := options(t, flags)
	o.Getenv = func(name string) string { return env[name] }
	cfg, err := config.Parse("Corefile", strings.NewReader(corefile))
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{opts: o}
	return d.planRedirect(source{Config: cfg}), d
}

// options reads some flags of the command line.
func options(t *testing.T, line string) *Options {
	t.Helper()
	o := &Options{DNSPort: 53, ClusterDomain: "cluster.local", UpstreamService: "kube-dns", Cluster: ClusterOptions{Namespace: "kube-system", Service: "kube-dns"}}
	r := &o.Redirect
	words := strings.Fields(line)
	for i := 0; i < len(words); i += 2 {
		value := words[i+1]
		list := strings.Split(value, ",")
		var err error
		switch words[i] {
		case "-localip":
			o.LocalIPs, err = config.ParseHostAddrs(value)
		case "-node-ip":
			r.NodeIPs, err = config.ParseHostAddrs(value)
		case "-dns.port":
			_, err = fmt.Sscan(value, &o.DNSPort)
		case "-endpoints-of":
			o.Cluster.Namespace, o.Cluster.Service, _ = strings.Cut(value, "/")
		case "-redirect":
			r.Mode, err = config.ParseRedirectMode(value)
		case "-redirect-target":
			r.Targets, err = each(list, config.ParseRedirectTarget)
		case "-redirect-service":
			r.Services, err = each(list, config.ParseRedirectService)
		case "-redirect-fallback":
			r.Fallbacks, err = each(list, config.ParseRedirectFallback)
		case "-redirect-heartbeat":
			r.Heartbeat, err = config.ParseRedirectHeartbeat(value)
		case "-redirect-uplink":
			r.Uplinks = list
		case "-kubepods":
			r.Kubepods = value
		default:
			t.Fatalf("unknown flag %s", words[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func each[T any](list []string, parse func(string) (T, error)) (all []T, err error) {
	for _, s := range list {
		v, e := parse(s)
		all, err = append(all, v), errors.Join(err, e)
	}
	return all, err
}

// services prints VIP>TARGET|FALLBACK,… of each.
func services(p redirectPlan) string {
	var all []string
	for _, s := range p.services {
		var fallbacks []string
		for _, f := range s.Fallbacks {
			fallbacks = append(fallbacks, f.String())
		}
		all = append(all, fmt.Sprintf("%v>%v|%s", s.VIP, s.Target, strings.Join(fallbacks, ",")))
	}
	return strings.Join(all, " ")
}

func TestPlanRedirect(t *testing.T) {
	const both = "-localip 169.254.20.10,fd00:53::10 -node-ip 192.0.2.7,2001:db8::7 -redirect on"
	plain := "cluster.local {\n forward . 10.96.0.10 tls://10.96.0.11 169.254.20.10 {\n force_tcp\n }\n}\n. {\n forward . /etc/resolv.conf\n}\n"
	with := func(directive string) string { return plain + "redirect.invalid {\n sample\n " + directive + "\n}\n" }
	for _, tc := range []struct {
		name, corefile, flags string
		env                   map[string]string
		want                  string
	}{
		{"one port for each family", plain, both, nil,
			"169.254.20.10:53>192.0.2.7:20053|10.96.0.10:53 [fd00:53::10]:53>[2001:db8::7]:20053|"},
		{"a port for each service, and no fallback to what is redirected", plain, both + " -redirect-service 169.254.20.10,10.96.0.10", nil,
			"169.254.20.10:53>192.0.2.7:20053| 10.96.0.10:53>192.0.2.7:20054|"},
		{"the environment's Service as a fallback", plain, both, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.12"},
			"169.254.20.10:53>192.0.2.7:20053|10.96.0.10:53,10.96.0.12:53 [fd00:53::10]:53>[2001:db8::7]:20053|"},
		{"fallbacks by flag, each for its family", plain, both + " -redirect-fallback 10.0.2.7,fd00::7", nil,
			"169.254.20.10:53>192.0.2.7:20053|10.0.2.7:53 [fd00:53::10]:53>[2001:db8::7]:20053|[fd00::7]:53"},
		{"the Corefile overrules", with("redirect on {\n target :20153 192.0.2.8\n fallback 10.0.3.8\n }"),
			both + " -redirect-target 192.0.2.9:20253 -redirect-fallback 10.0.2.7", nil,
			"169.254.20.10:53>192.0.2.8:20153|10.0.3.8:53 [fd00:53::10]:53>[2001:db8::7]:20153|"},
		{"a target with its own port", with("redirect on {\n target :20153 192.0.2.8:20999\n }"), both, nil,
			"169.254.20.10:53>192.0.2.8:20999|10.96.0.10:53 [fd00:53::10]:53>[2001:db8::7]:20153|"},
		{"the node's address from the environment", plain, "-localip 169.254.20.10 -redirect auto", map[string]string{"HOST_IP": "2001:db8::7,192.0.2.9"},
			"169.254.20.10:53>192.0.2.9:20053|10.96.0.10:53"},
		{"the default port of services", plain, "-localip 169.254.20.10 -node-ip 192.0.2.7 -dns.port 1053 -redirect on", nil,
			"169.254.20.10:1053>192.0.2.7:20053|10.96.0.10:53"},
		{"off by default", plain, "-localip 169.254.20.10", nil, ""},
		{"the Corefile turns it off", with("redirect off"), both, nil, ""},
	} {
		p, _ := plan(t, tc.corefile, tc.flags, tc.env)
		if got := services(p); got != tc.want || p.err != nil {
			t.Errorf("%s: %s, %v\nwant %s", tc.name, got, p.err, tc.want)
		}
	}
}

func TestPlanRedirectErrors(t *testing.T) {
	for flags, want := range map[string]string{
		"-localip 127.0.0.1":                          "nothing to redirect: give -localip or a service",
		"-localip 169.254.20.10 -node-ip 2001:db8::7": "environment variable NODE_IP: \"node-1\" is not an IP address",
		"-node-ip 192.0.2.7 -redirect-target :65535 -redirect-service 169.254.20.10,169.254.20.11": "no port is left after 65535",
	} {
		p, _ := plan(t, ". {\n whoami\n}\n", flags+" -redirect on", map[string]string{"NODE_IP": "node-1"})
		if p.err == nil || !strings.Contains(p.err.Error(), want) {
			t.Errorf("%s: %v, want %s", flags, p.err, want)
		}
	}
}

func TestOverruledFlags(t *testing.T) {
	corefile := ". {\n whoami\n redirect off {\n kubepods /a\n fallback 10.0.2.7\n heartbeat 400ms\n }\n}\n"
	_, d := plan(t, corefile, "-redirect on -kubepods /b -redirect-fallback 10.0.2.7 -redirect-heartbeat 500ms -redirect-uplink eth0", nil)
	cfg, _ := config.Parse("Corefile", strings.NewReader(corefile))
	if got := fmt.Sprint(d.overruledFlags(source{Config: cfg})); got != "[-redirect -redirect-heartbeat -kubepods]" {
		t.Error(got)
	}
}

// The cluster's ClusterIP is delivered without us, and no other address. Who gives
// fallbacks wants these.
func TestPlanProxied(t *testing.T) {
	const flags = "-node-ip 192.0.2.7 -redirect on -redirect-service 169.254.20.10,10.96.0.10"
	env := map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.10"}
	for _, tc := range []struct {
		flags string
		want  bool
	}{{flags, true}, {flags + " -redirect-fallback 10.0.2.7", false}, {flags + " -endpoints-of kube-system/coredns", false}} {
		p, _ := plan(t, ". {\n whoami\n}\n", tc.flags, env)
		if len(p.services) != 2 || p.services[0].Proxied || p.services[1].Proxied != tc.want {
			t.Errorf("%s: %+v, want %t of the second", tc.flags, p.services, tc.want)
		}
	}
}

// One answer does not vouch for a target whose port a process that hangs holds too.
func TestAskTargetsAsksAllWorkers(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // answers the first one that asks
		defer cancel()
		buf := make([]byte, 512)
		n, first, err := c.ReadFrom(buf)
		for from := first; err == nil && from.String() == first.String(); n, from, err = c.ReadFrom(buf) {
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
	target := c.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := askTargets(ctx, redirectPlan{services: []bpf.Service{{Target: target}}}, 2); err == nil {
		t.Error("a target most of whose workers do not answer is taken for well")
	}
}

// What is learnt before there is a redirection is not lost.
func TestLearnEarly(t *testing.T) {
	r := newRedirector(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), 1, "")
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.0.2.7:53")}
	if err := r.learn(endpoints); err != nil || len(r.learnt) != 1 {
		t.Errorf("learnt %v, %v", r.learnt, err)
	}
}
