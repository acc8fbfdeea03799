package redirect

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

// config must not import bpf, but the bounds of both are the same.
func TestHeartbeatBounds(t *testing.T) {
	if config.MinRedirectHeartbeat != bpf.MinHeartbeatTimeout || config.MaxRedirectHeartbeat != bpf.MaxHeartbeatTimeout {
		t.Error("config and bpf differ")
	}
	for _, d := range []time.Duration{0, bpf.MinHeartbeatTimeout, bpf.MaxHeartbeatTimeout} {
		timeout := d
		if d == 0 {
			timeout = bpf.DefaultHeartbeatTimeout
		}
		if 3*heartbeatInterval(d) > timeout {
			t.Errorf("heartbeat %v: one lost query makes a healthy daemon count as hung", d)
		}
	}
}

// plan returns the plan of a Corefile. args are -localip, -node-ip and
// -dns.port, each with a value.
func plan(t *testing.T, corefile, args string, env map[string]string) Plan {
	t.Helper()
	cfg, err := config.Parse("Corefile", corefile, config.Source{})
	if err != nil {
		t.Fatal(err)
	}
	getenv := func(name string) string { return env[name] }
	in := Input{Config: cfg, DNSPort: 53, ClusterDomain: "cluster.local", Getenv: getenv}
	in.UpstreamIP, _ = netip.ParseAddr(getenv("KUBE_DNS_SERVICE_HOST"))
	in.ClusterIP = in.UpstreamIP
	words := strings.Fields(args)
	for i := 0; i < len(words); i += 2 {
		switch words[i] {
		case "-localip":
			in.LocalIPs, err = config.ParseHostAddrs(words[i+1])
		case "-node-ip":
			in.NodeIPs, err = config.ParseHostAddrs(words[i+1])
		case "-dns.port":
			_, err = fmt.Sscan(words[i+1], &in.DNSPort)
		default:
			t.Fatalf("unknown argument %s", words[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return NewPlan(in)
}

// services prints the services of p as VIP>TARGET|FALLBACK,…
func services(p Plan) string {
	var all []string
	for _, s := range p.Services {
		var fallbacks []string
		for _, f := range s.Fallbacks {
			fallbacks = append(fallbacks, f.String())
		}
		all = append(all, fmt.Sprintf("%v>%v|%s", s.VIP, s.Target, strings.Join(fallbacks, ",")))
	}
	return strings.Join(all, " ")
}

// withRedirect is a Corefile with upstreams of the cluster domain and a directive.
func withRedirect(directive string) string {
	return "cluster.local {\n forward . 10.96.0.10 tls://10.96.0.11 169.254.20.10 {\n force_tcp\n }\n}\n. {\n forward . /etc/resolv.conf\n " + directive + "\n}\n"
}

func TestPlan(t *testing.T) {
	const both = "-localip 169.254.20.10,fd00:53::10 -node-ip 192.0.2.7,2001:db8::7"
	for _, tc := range []struct {
		name, directive, args string
		env                   map[string]string
		want                  string
	}{
		{"one port for each family", "redirect on", both, nil,
			"169.254.20.10:53>192.0.2.7:20053|10.96.0.10:53 [fd00:53::10]:53>[2001:db8::7]:20053|"},
		{"a port for each service, and no fallback that is redirected", "redirect on {\n service 169.254.20.10 10.96.0.10\n }", both, nil,
			"169.254.20.10:53>192.0.2.7:20053| 10.96.0.10:53>192.0.2.7:20054|"},
		{"the environment's Service as a fallback", "redirect on", both, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.12"},
			"169.254.20.10:53>192.0.2.7:20053|10.96.0.10:53,10.96.0.12:53 [fd00:53::10]:53>[2001:db8::7]:20053|"},
		{"given fallbacks, each for its family", "redirect on {\n fallback 10.0.2.7 fd00::7\n }", both, nil,
			"169.254.20.10:53>192.0.2.7:20053|10.0.2.7:53 [fd00:53::10]:53>[2001:db8::7]:20053|[fd00::7]:53"},
		{"a port for all targets, an address for one", "redirect on {\n target :20153 192.0.2.8\n }", both, nil,
			"169.254.20.10:53>192.0.2.8:20153|10.96.0.10:53 [fd00:53::10]:53>[2001:db8::7]:20153|"},
		{"a target with its own port", "redirect on {\n target :20153 192.0.2.8:20999\n }", both, nil,
			"169.254.20.10:53>192.0.2.8:20999|10.96.0.10:53 [fd00:53::10]:53>[2001:db8::7]:20153|"},
		{"the node's address from the environment", "redirect auto", "-localip 169.254.20.10", map[string]string{"HOST_IP": "2001:db8::7,192.0.2.9"},
			"169.254.20.10:53>192.0.2.9:20053|10.96.0.10:53"},
		{"the default port of services", "redirect on", "-localip 169.254.20.10 -node-ip 192.0.2.7 -dns.port 1053", nil,
			"169.254.20.10:1053>192.0.2.7:20053|10.96.0.10:53"},
		{"off by default", "", both, nil, ""},
		{"off", "redirect off", both, nil, ""},
	} {
		p := plan(t, withRedirect(tc.directive), tc.args, tc.env)
		if got := services(p); got != tc.want || p.Err != nil {
			t.Errorf("%s: %s, %v\nwant %s", tc.name, got, p.Err, tc.want)
		}
	}
}

func TestPlanErrors(t *testing.T) {
	for _, tc := range []struct{ directive, args, want string }{
		{"redirect on", "-localip 127.0.0.1", "nothing to redirect: set -localip or the option service"},
		{"redirect on", "-localip 169.254.20.10 -node-ip 2001:db8::7", "environment variable NODE_IP: \"node-1\" is not an IP address"},
		{"redirect on {\n target :65535\n service 169.254.20.10 169.254.20.11\n }", "-node-ip 192.0.2.7", "no port is left after 65535"},
	} {
		p := plan(t, withRedirect(tc.directive), tc.args, map[string]string{"NODE_IP": "node-1"})
		if p.Err == nil || !strings.Contains(p.Err.Error(), tc.want) {
			t.Errorf("%s, %s: %v, want %s", tc.directive, tc.args, p.Err, tc.want)
		}
	}
}

// Without nodens, the service proxy delivers the cluster IP of the cluster's DNS,
// and no other address. Configured fallbacks take precedence over it.
func TestPlanProxied(t *testing.T) {
	for _, tc := range []struct {
		option, clusterIP string
		want              bool
	}{{"", "10.96.0.10", true}, {"fallback 10.0.2.7", "10.96.0.10", false}, {"", "10.96.0.11", false}} {
		directive := "redirect on {\n service 169.254.20.10 10.96.0.10\n " + tc.option + "\n }"
		p := plan(t, withRedirect(directive), "-node-ip 192.0.2.7", map[string]string{"KUBE_DNS_SERVICE_HOST": tc.clusterIP})
		if len(p.Services) != 2 || p.Services[0].Proxied || p.Services[1].Proxied != tc.want {
			t.Errorf("%+v: %+v", tc, p.Services)
		}
	}
}

// Plans are equal if they mean the same to the kernel and to listeners. Line numbers
// of the Corefile do not matter.
func TestPlanEqual(t *testing.T) {
	const args = "-localip 169.254.20.10 -node-ip 192.0.2.7"
	base := plan(t, withRedirect("redirect on"), args, nil)
	if p := plan(t, "\n\n"+withRedirect("redirect on"), args, nil); !p.Equal(base) {
		t.Error("a plan is not equal to the same plan from other lines")
	}
	for _, option := range []string{"target :20153", "service 169.254.20.11", "fallback 10.0.2.7", "heartbeat 500ms", "opt_out kube-system", "uplink eth0"} {
		if p := plan(t, withRedirect("redirect on {\n "+option+"\n }"), args, nil); p.Equal(base) || base.Equal(p) {
			t.Errorf("%s: equal to a plan without", option)
		}
	}
	for name, p := range map[string]Plan{
		"auto":      plan(t, withRedirect("redirect auto"), args, nil),
		"off":       plan(t, withRedirect("redirect off"), args, nil),
		"ClusterIP": plan(t, withRedirect("redirect on"), args, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.12"}),
		"skipped":   plan(t, withRedirect("redirect on"), "-localip 169.254.20.10,fd00:53::10 -node-ip 192.0.2.7", nil),
	} {
		if p.Equal(base) || base.Equal(p) {
			t.Errorf("%s: equal to a plan without", name)
		}
	}
	failed := base
	failed.Err = errors.New("the target's port is in use")
	if failed.Equal(base) {
		t.Error("a plan that failed equals one that did not")
	}
}

// An answer of one worker does not prove that a hung process does not hold the
// target's port as well.
func TestCheckTargetsQueriesAllWorkers(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // answers the first client only
		defer cancel()
		buf := make([]byte, 512)
		n, first, err := c.ReadFrom(buf)
		for from := first; err == nil && from.String() == first.String(); n, from, err = c.ReadFrom(buf) {
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
	target := c.LocalAddr().(*net.UDPAddr).AddrPort()
	if err := checkTargets(ctx, []bpf.Service{{Target: target}}, 2, func() {}); err == nil {
		t.Error("a target most of whose workers do not answer passes the check")
	}
}

func newRedirector() *Redirector {
	return New(Config{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Workers: 1, Pinned: func(bool) {}})
}

// Endpoints that arrive before redirection is open are kept for it.
func TestLearnEarly(t *testing.T) {
	r := newRedirector()
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.0.2.7:53")}
	if err := r.Learn(endpoints); err != nil || !r.endpoints.known || len(r.endpoints.addrs) != 1 {
		t.Errorf("learned %+v, %v", r.endpoints, err)
	}
}

// A plan that cannot work still needs BPF, because a reload may bring one that
// works.
func TestNeedsBPF(t *testing.T) {
	for mode, want := range map[config.RedirectMode]bool{config.RedirectOff: false, config.RedirectAuto: true, config.RedirectOn: true} {
		r := newRedirector()
		r.Open(t.Context(), Plan{Mode: mode, Err: errors.New("no target")})
		if got := r.NeedsBPF(); got != want {
			t.Errorf("%s: %t", mode, got)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	r := newRedirector()
	r.session = &session{clearing: true}
	if !r.NeedsBPF() {
		t.Error("off, with a predecessor's programs to remove: false")
	}
}
