package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/doctor"
	"github.com/nodens-dns/nodens/internal/lab"
)

// breakage breaks a world in one way.
type breakage struct {
	name  string
	do    func(t *testing.T, w *world) // runs before doctor; the daemon is up unless down is set
	down  bool                         // no daemon
	flags []string                     // further flags of the daemon
	args  []string                     // further flags of doctor
	wrap  []string                     // a program that runs doctor
	files map[string]string            // contents by path, only for doctor
	want  []string                     // SEVERITY VIEW ID
	text  string                       // part of a finding's text
}

// TestFindings provokes each finding and expects no other than the listed ones.
func TestFindings(t *testing.T) {
	t.Parallel()
	for _, p := range breakages() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t)
		})
	}
}

func (p breakage) test(t *testing.T) { p.run(t, newWorld(t)) }

// run applies the breakage to a world and runs doctor.
func (p breakage) run(t *testing.T, w *world) {
	if !p.down {
		w.start(t, p.flags...)
	}
	if p.do != nil {
		p.do(t, w)
	}
	p.examine(t, w)
}

// examine runs doctor and expects the listed findings.
func (p breakage) examine(t *testing.T, w *world) {
	t.Helper()
	r := w.doctor(t, p.wrap, p.files, append([]string{"-wait", "1s"}, p.args...)...)
	w.expect(t, r, p.want...)
	if len(r.Unexamined) > 0 {
		t.Errorf("not examined: %q", r.Unexamined)
	}
	if p.text != "" && !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return strings.Contains(f.What+f.Do, p.text) }) {
		t.Errorf("no finding has %q: %+v", p.text, r.Findings)
	}
}

// TestEveryKind expects that a test provokes every kind of finding.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	provoked := elsewhere()
	for _, p := range slices.Concat(breakages(), redirectBreakages()) {
		for _, w := range p.want {
			provoked = append(provoked, strings.Fields(w)[2])
		}
	}
	for _, k := range doctor.Kinds() {
		if !slices.Contains(provoked, k.ID) {
			t.Errorf("no test provokes %s", k.ID)
		}
	}
}

// elsewhere are the kinds that other tests provoke.
func elsewhere() []string {
	return []string{
		"cni-swallows",    // TestCNISwallows
		"conntrack-drops", // TestConntrackDrops of package doctor
	}
}

func breakages() []breakage {
	return slices.Concat(servingBreakages(), hostBreakages(), upstreamBreakages(), searchBreakages(), cutBreakages(), podBreakages())
}

// TestHealthy is the control: doctor finds nothing and reports which server
// answers.
func TestHealthy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.doctor(t, nil, nil)
	w.expect(t, r)
	if len(r.Unexamined) > 0 {
		t.Errorf("not examined: %q", r.Unexamined)
	}
	for _, view := range []string{"node", w.podPID} {
		if !hasFact(r, view, localAddr) || !hasFact(r, view, "answered by nodens ") {
			t.Errorf("no fact of view %s says that nodens answers: %+v", view, r.Facts)
		}
	}
}

// TestServiceAddress has pods that use the ClusterIP of the cluster's DNS, for
// which the service proxy has a rule. nodens intercepts it, or does not.
func TestServiceAddress(t *testing.T) {
	t.Parallel()
	const service = "10.96.0.10"
	w := newWorld(t)
	w.node.AddRoute(t, "0.0.0.0/0", lab.OutsideIP)
	w.startPod(t, "nameserver "+service+"\n")
	w.node.Nft(t, "table ip kube-proxy { chain c { type nat hook prerouting priority -100; ip daddr "+service+" udp dport 53 dnat to "+clusterDNS+
		"; ip daddr "+service+" tcp dport 53 dnat to "+clusterDNS+"; }; }")
	w.write(t, "Corefile", strings.ReplaceAll(corefile, "bind "+localIP, "bind "+localIP+" "+service))
	both := []string{"-wait", "1s", "-localip", localIP + "," + service}
	w.start(t, both[2:]...)
	r := w.doctor(t, nil, nil, both...)
	w.expect(t, r)
	if !hasFact(r, w.podPID, service+":53 is reached by address, in front of any service proxy, answered by nodens ") {
		t.Errorf("facts %+v", r.Facts)
	}
	w.daemon.Kill()
	r = w.doctor(t, nil, nil, both...)
	if !hasFact(r, w.podPID, service+":53 is answered by CoreDNS-1.14.7") {
		t.Errorf("facts %+v", r.Facts)
	}
	w.write(t, "Corefile", corefile)
	w.start(t)
	r = w.doctor(t, nil, nil, "-wait", "1s")
	w.expect(t, r, "warning pod pod-elsewhere")
	if !hasFact(r, w.podPID, "its resolv.conf names "+service+", answered by CoreDNS-1.14.7") {
		t.Errorf("facts %+v", r.Facts)
	}
}

// TestFlagsOfTheDaemon runs doctor without flags in the daemon's namespaces, as
// in the daemon's container, and names the pod by its network namespace.
func TestFlagsOfTheDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pod := "/proc/" + w.podPID + "/ns/net"
	inside := func(args ...string) doctor.Report {
		t.Helper()
		enter := fmt.Sprintf("--mount=/proc/%d/ns/mnt", w.daemon.PID())
		return report(t, lab.Command{Netns: w.node, Args: append([]string{"nsenter", enter, nodens.Path(t), "doctor", "-o", "json", "-wait", "1s"}, args...)})
	}
	w.start(t)
	r := inside("-pod", pod)
	w.expect(t, r)
	if !hasFact(r, pod, localAddr+" is reached by address, answered by nodens ") || !hasFact(r, "node", "upstream "+clusterDNS) {
		t.Errorf("facts %+v", r.Facts)
	}
	// With a second daemon with other flags doctor cannot know which one to use.
	first := w.daemon.PID()
	other := lab.Command{Netns: w.node, Args: []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", first), nodens.Path(t),
		"-conf", w.write(t, "Corefile.other", ".:5301 {\n    bind 127.0.0.1\n    forward . "+outsideDNS+"\n}\n"), "-metrics-listen-address", "0"}}.Start(t)
	other.Out.WaitFor(t, 0, ` listens on `)
	_, stderr, status := lab.Command{Netns: w.node, Args: []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", first), nodens.Path(t), "doctor"}}.Output(t)
	if status != 1 || !strings.Contains(stderr, "several nodens run here") {
		t.Errorf("status %d\n%s", status, stderr)
	}
}

// TestInContainer runs doctor as in the daemon's container: with the two
// capabilities that are left there, and without a view of other processes.
func TestInContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	contain := []string{"setpriv", "--bounding-set=-all,+net_admin,+net_bind_service", "--inh-caps=-all"}
	w.startAs(t, append([]string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}, contain...))
	first := strings.TrimSpace(readFile(t, fmt.Sprintf("/proc/%d/task/%[1]d/children", w.daemon.PID())))
	inside := append([]string{"nsenter", "--target", first, "--mount", "--pid"}, contain...)
	r := report(t, lab.Command{Netns: w.node, Args: append(inside, nodens.Path(t), "doctor", "-o", "json")})
	w.expect(t, r)
	// Other tests may have pods just now: doctor sees their cgroups, but no processes.
	hidden := len(r.Unexamined) == 1 && strings.Contains(r.Unexamined[0], "processes are not visible from here")
	none := len(r.Unexamined) == 0 && hasFact(r, "node", "no pod was examined")
	if !hasFact(r, "node", localAddr+" is answered by nodens ") || !hidden && !none {
		t.Errorf("not examined %q, facts %+v", r.Unexamined, r.Facts)
	}
}

// TestUnexamined runs doctor without permission to enter the pod. It reports
// that, and no other finding.
func TestUnexamined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.doctor(t, []string{"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}, nil)
	w.expect(t, r)
	if len(r.Unexamined) != 1 || !strings.Contains(r.Unexamined[0], "enter the network namespace") {
		t.Errorf("not examined: %q", r.Unexamined)
	}
}

// TestHealthyDualStack is the control with addresses of both families.
func TestHealthyDualStack(t *testing.T) {
	t.Parallel()
	const localIP6 = "fd00:20::10"
	w := newWorld(t)
	w.node.AddAddrs(t, "pod0", "fd00:1::1/64")
	w.pod.AddAddrs(t, "eth0", "fd00:1::5/64")
	w.pod.AddRoute(t, "::/0", "fd00:1::1")
	w.startPod(t, "nameserver "+localIP+"\nnameserver "+localIP6+"\n")
	w.write(t, "Corefile", strings.ReplaceAll(corefile, "bind "+localIP, "bind "+localIP+" "+localIP6))
	both := []string{"-localip", localIP + "," + localIP6}
	w.start(t, both...)
	r := w.doctor(t, nil, nil, both...)
	w.expect(t, r)
	for _, view := range []string{"node", w.podPID} {
		if !hasFact(r, view, localAddr) || !hasFact(r, view, "["+localIP6+"]:53") {
			t.Errorf("facts %+v", r.Facts)
		}
	}
}

func servingBreakages() []breakage {
	return []breakage{
		{name: "config invalid", args: []string{"-conf", "/etc/Corefile.bad"}, do: func(t *testing.T, w *world) {
			w.write(t, "Corefile.bad", "example.org {\n    fourward . 192.0.2.1\n}\n")
		}, want: []string{"fault node config-invalid"}, text: "Corefile.bad:2: fourward"},
		{
			name: "wrong cluster IP", flags: []string{"-localip", localIP + ",10.99.0.9"}, args: []string{"-localip", localIP + ",10.99.0.9"},
			wrap: []string{"env", "KUBE_DNS_SERVICE_HOST=172.20.0.10"}, want: []string{"fault node not-serving", "warning node cluster-ip"}, text: "10.99.0.9, but the Service kube-dns has 172.20.0.10",
		},
		{name: "address missing", down: true, want: []string{"fault node address-missing"}},
		{name: "no server", down: true, do: addAddress, want: []string{"fault node not-serving", "warning node host-drift"}},
		{name: "port held", down: true, do: func(t *testing.T, w *world) {
			addAddress(t, w)
			w.node.ListenPacket(t, "udp", localAddr)
		}, want: []string{"fault node port-held", "warning node host-drift"}, text: fmt.Sprintf("(pid %d)", os.Getpid())},
		{name: "admin port held", args: []string{"-metrics-listen-address", "127.0.0.1:9353"}, do: func(t *testing.T, w *world) {
			w.node.Listen(t, "tcp", "127.0.0.1:9353")
		}, want: []string{"fault node port-held"}, text: "port 9353 of -metrics-listen-address"},
		{name: "hung", do: func(t *testing.T, w *world) {
			w.daemon.Signal(t, syscall.SIGSTOP)
		}, want: []string{"fault node hung"}},
		{name: "other server", down: true, do: func(t *testing.T, w *world) {
			addAddress(t, w)
			lab.StartUpstream(t, w.node, localAddr, normal)
		}, want: []string{"fault node other-server", "warning node host-drift"}, text: "CoreDNS-1.14.7"},
		{name: "no TCP", do: func(t *testing.T, w *world) {
			w.node.Nft(t, "table ip t { chain c { type filter hook output priority 0; ip daddr "+localIP+" tcp dport 53 reject with tcp reset; }; }")
		}, want: []string{"fault node tcp-lost"}},
		{name: "no capability", down: true, do: addAddress, wrap: []string{"setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"},
			want: []string{"fault node capability-missing", "fault node not-serving", "warning node host-drift"}, text: "NET_BIND_SERVICE"},
	}
}

// addAddress puts the local IP on the node as an administrator would.
func addAddress(t *testing.T, w *world) { w.node.AddAddrs(t, "lo", localIP+"/32") }

func hostBreakages() []breakage {
	return []breakage{
		{name: "rules missing", flags: []string{"-setupiptables=false"}, want: []string{"warning node host-drift"}, text: "netfilter rules"},
		{name: "firewall", flags: []string{"-setupiptables=false"}, args: []string{"-setupiptables=false"}, do: func(t *testing.T, w *world) {
			w.node.Nft(t, "table inet fw { chain in { type filter hook input priority 0; policy drop; iif lo accept; ip protocol icmp accept; udp sport 53 accept; tcp sport 53 accept; ip daddr "+localIP+" accept; }; }")
		}, want: []string{"warning node firewall-drops"}, text: "fw"},
		{name: "conntrack nearly full", files: conntrack("850", "1000"), want: []string{"warning node conntrack-full"}},
		{name: "conntrack full", files: conntrack("990", "1000"), want: []string{"fault node conntrack-full"}, text: "99 %"},
	}
}

func conntrack(count, limit string) map[string]string {
	const dir = "/proc/sys/net/netfilter/nf_conntrack_"
	return map[string]string{dir + "count": count + "\n", dir + "max": limit + "\n"}
}

// rootForward is the Corefile with another forward of the root zone.
func rootForward(to string) string {
	return strings.Replace(corefile, "forward . /etc/resolv.conf", "forward . "+to, 1)
}

// given makes doctor read another Corefile than the daemon.
func given(text string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) { w.write(t, "Corefile.doctor", text) }
}

var doctorsCorefile = []string{"-conf", "/etc/Corefile.doctor"}

func upstreamBreakages() []breakage {
	return []breakage{
		{name: "one upstream silent", args: doctorsCorefile, do: given(rootForward(outsideDNS + " " + deadDNS)),
			want: []string{"warning node upstream-silent"}, text: deadDNS},
		{name: "all upstreams silent", args: doctorsCorefile, do: given(rootForward(deadDNS)), want: []string{"fault node upstream-silent"}},
		{name: "fallback silent", args: doctorsCorefile, do: given(strings.Replace(corefile, clusterDNS, deadDNS, 1)),
			want: []string{"fault node fallback-silent"}},
		{name: "upstream without TCP", args: doctorsCorefile, do: func(t *testing.T, w *world) {
			w.ext.Nft(t, "table ip t { chain c { type filter hook input priority 0; ip daddr "+outsideDNS+" tcp dport 53 reject with tcp reset; }; }")
			given(rootForward(outsideDNS))(t, w)
		}, want: []string{"warning node upstream-no-tcp"}},
		{name: "upstream refuses", do: func(_ *testing.T, w *world) {
			w.answerAs(func(q *dns.Msg) *dns.Msg {
				r := lab.Reply(q)
				if r.Rcode = dns.RcodeRefused; strings.Contains(q.Question[0].Name, "example") {
					r.Rcode = dns.RcodeNameError
				}
				return r
			})
		}, want: []string{"warning node upstream-refuses"}},
		{name: "loop by forward", args: doctorsCorefile, do: given(rootForward(outsideDNS + " " + localIP)), want: []string{"fault node forward-loop"}},
		{name: "loop by resolv.conf", files: map[string]string{"/etc/resolv.conf": "nameserver " + localIP + "\n"}, want: []string{"fault node forward-loop"}},
		{name: "stub in resolv.conf", files: map[string]string{"/etc/resolv.conf": "nameserver 127.0.0.53\n"}, do: func(t *testing.T, w *world) {
			lab.StartUpstream(t, w.node, "127.0.0.53:53", normal)
		}, want: []string{"warning node resolv-stub"}},
		{name: "empty resolv.conf", files: map[string]string{"/etc/resolv.conf": "options ndots:1\n"}, want: []string{"fault node resolv-empty"}},
		{name: "fragments lost", do: func(t *testing.T, w *world) {
			w.answerAs(large)
			w.node.Nft(t, fragments+"ip frag-off & 0x3fff != 0 drop; }; }")
		}, want: []string{"warning node large-lost"}, text: "arrives, truncated"},
		{name: "large packets lost", do: func(t *testing.T, w *world) {
			w.answerAs(large)
			w.node.Nft(t, fragments+"meta l4proto udp meta length > 1000 drop; }; }")
		}, want: []string{"fault node large-lost"}, text: "even with"},
	}
}

// fragments starts a chain that sees packets before reassembly.
const fragments = "table ip t { chain c { type filter hook prerouting priority -450; iifname eth0 "

// large is normal with an answer of about 2,000 octets for the root's DNSKEY,
// truncated to 1,100 if the client takes no more.
func large(q *dns.Msg) *dns.Msg {
	if q.Question[0].Qtype != dns.TypeDNSKEY {
		return normal(q)
	}
	r := lab.Reply(q)
	n := 8
	if q.IsEdns0().UDPSize() < 2000 {
		n, r.Truncated = 4, true
	}
	for range n {
		rr, err := dns.NewRR(". 60 IN TXT " + strings.Repeat("x", 250))
		if err != nil {
			panic(err) // a mistake in the records above
		}
		r.Answer = append(r.Answer, rr)
	}
	return r
}

// answering is normal except for names below example.com.
func answering(rcode int) func(q *dns.Msg) *dns.Msg {
	return func(q *dns.Msg) *dns.Msg {
		if !strings.HasSuffix(q.Question[0].Name, "example.com.") {
			return normal(q)
		}
		r := lab.Reply(q)
		r.Rcode = rcode
		return r
	}
}

func searchBreakages() []breakage {
	return []breakage{
		{name: "empty answers", do: func(_ *testing.T, w *world) { w.answerAs(answering(dns.RcodeSuccess)) },
			want: []string{"note node search-empty"}, text: "turns that into NXDOMAIN"},
		{name: "empty answers, not normalised", down: true, do: func(t *testing.T, w *world) {
			w.answerAs(answering(dns.RcodeSuccess))
			w.write(t, "Corefile", strings.Replace(corefile, "prometheus", "normalize {\n        mode off\n    }\n    prometheus", 1))
			w.start(t)
		}, want: []string{"warning node search-empty"}, text: "passes that on"},
		{name: "empty answers for the pod's suffix", do: func(t *testing.T, w *world) {
			w.answerAs(func(q *dns.Msg) *dns.Msg {
				if strings.HasSuffix(q.Question[0].Name, ".corp.example.") {
					return lab.Reply(q)
				}
				return normal(q)
			})
			w.startPod(t, podResolvConf+"search corp.example\n")
		}, want: []string{"warning pod search-empty"}},
		{name: "failing suffix", do: func(_ *testing.T, w *world) { w.answerAs(answering(dns.RcodeServerFailure)) },
			want: []string{"warning node search-failing"}, text: "SERVFAIL"},
	}
}

func cutBreakages() []breakage {
	return []breakage{{name: "search_cut off", down: true, do: func(t *testing.T, w *world) {
		w.answerAs(contradicting)
		w.write(t, "Corefile", strings.Replace(corefile, "forward . "+clusterDNS, "forward . "+outsideDNS, 1))
		w.start(t)
		for i := 0; ; i++ {
			w.node.Ask(t, "udp", localAddr, lab.Query(existing, dns.TypeA))
			w.node.Ask(t, "udp", localAddr, lab.Query(fmt.Sprintf("gone%d.default.svc.cluster.local.", i), dns.TypeA))
			if off, _ := w.node.Scrape(t, localIP+":9253").Sum("nodens_search_cut_off", "zone=cluster.local."); off == 1 {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}, want: []string{"warning node search-cut-off"}, text: "zone cluster.local."}}
}

// existing is a name below names that contradicting denies.
const existing = "web.default.svc.cluster.local."

// contradicting breaks RFC 8020.
func contradicting(q *dns.Msg) *dns.Msg {
	switch name := q.Question[0].Name; {
	case name == existing:
		return lab.Reply(q, existing+" 1 IN A 10.96.0.1")
	case strings.HasSuffix(name, ".cluster.local."):
		r := lab.Denial(q, dns.RcodeNameError, "cluster.local.")
		soa := r.Ns[0].(*dns.SOA)
		soa.Hdr.Ttl, soa.Minttl = 1, 1
		return r
	}
	return normal(q)
}

// fromPod starts a chain that sees packets from the pod first.
const fromPod = "table ip t { chain c { type filter hook prerouting priority -250; iifname pod0 "

func podBreakages() []breakage {
	return []breakage{
		{name: "lost on the way", do: func(t *testing.T, w *world) {
			w.node.Nft(t, fromPod+"ip daddr "+localIP+" drop; }; }")
		}, want: []string{"fault pod pod-lost"}},
		{name: "cut off", do: func(t *testing.T, w *world) {
			w.node.Nft(t, fromPod+"drop; }; }")
		}, want: []string{"fault pod pod-cut-off"}},
		{name: "uses other servers", do: func(t *testing.T, w *world) {
			w.startPod(t, "nameserver "+clusterDNS+"\n")
		}, want: []string{"warning pod pod-elsewhere"}, text: clusterDNS},
		{name: "uses the node's servers", do: func(t *testing.T, w *world) {
			w.startPod(t, nodeResolvConf)
		}},
		{name: "uses itself", do: func(t *testing.T, w *world) {
			w.startPod(t, "nameserver 127.0.0.53\n")
		}, want: []string{"fault pod pod-loopback-resolver", "warning pod pod-elsewhere"}},
		{name: "translated elsewhere", flags: []string{"-setupiptables=false"}, args: []string{"-setupiptables=false"}, do: func(t *testing.T, w *world) {
			w.node.Nft(t, "table ip t { chain c { type nat hook prerouting priority -100; iifname pod0 ip daddr "+localIP+" dnat to "+clusterDNS+"; }; }")
		}, want: []string{"fault pod pod-other-server"}, text: "CoreDNS-1.14.7"},
		{name: "no TCP from the pod", do: func(t *testing.T, w *world) {
			w.node.Nft(t, fromPod+"ip daddr "+localIP+" tcp dport 53 drop; }; }")
		}, want: []string{"fault pod pod-tcp-lost"}},
		{name: "no fallback from the pod", do: func(t *testing.T, w *world) {
			w.node.Nft(t, fromPod+"ip daddr "+clusterDNS+" drop; }; }")
		}, want: []string{"warning pod pod-fallback-silent"}},
		{name: "small MTU", do: func(t *testing.T, w *world) {
			output(t, w.pod, "ip", "link", "set", "eth0", "mtu", "1200")
		}, want: []string{"warning pod small-mtu"}, text: "1200"},
	}
}
