package fastpath

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nodens-dns/nodens/internal/lab"
)

const (
	benchNames  = 10_000
	benchWindow = 128 // queries in flight when saturated
	benchRound  = time.Second
)

// The mixes of test/bench: all names exist, or 70% do not.
const mixA, mixB = 0, 1

// job and result are those of test/bench.
type job struct {
	Server   netip.AddrPort
	Echo     bool
	Dropped  bool
	Mix      int
	From, To int
	Duration time.Duration // 0: each name once
	Window   int
}

type result struct {
	Answers, Wrong, Lost int
	Wall, P50, P99       time.Duration
	Err                  string
}

// generator is test/bench's generator in a pod, on one CPU.
type generator struct {
	pid int
	in  *json.Encoder
	out *json.Decoder
}

func startGenerator(t *testing.T, pod *lab.Netns, cpu int) *generator {
	t.Helper()
	cmd := exec.Command("taskset", "-c", strconv.Itoa(cpu), benchProgram.Path(t), "generate")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, pod.Do(cmd.Start))
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return &generator{cmd.Process.Pid, json.NewEncoder(in), json.NewDecoder(out)}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (g *generator) start(t *testing.T, j job) {
	t.Helper()
	j.Server, j.To = netip.MustParseAddrPort(vip4+":53"), benchNames
	check(t, g.in.Encode(j))
}

func (g *generator) finish(t *testing.T) (r result) {
	t.Helper()
	check(t, g.out.Decode(&r))
	if r.Err != "" {
		t.Fatal(r.Err)
	}
	if r.Answers == 0 {
		t.Fatal("no correct answer")
	}
	return r
}

// contestant is a node with a server, and a pod with two load generators.
type contestant struct {
	name       string
	pids       []int // processes that are measured, including the first generator
	generators [2]*generator
	echo       bool
	dropped    bool // the pod drops its queries
	node       *node
	program    *ebpf.Program // of nodens; set by takeProgram
}

// lease gives the pod a lease if the server has the zone of leasing.
func (c *contestant) lease(t *testing.T) {
	if c.name == passedLeased {
		c.node.warm(t, c.node.routed, vip4+":53", "name.lease.bench.example.")
	}
}

const (
	passed       = "passed by the program"
	passedLeased = "passed, with a lease"
	passingPairs = 3 // in each round: the program costs less than the noise of one pair
)

// leasing ends a server block and begins one for a zone that the kernel answers.
const leasing = "}\nlease.bench.example {\n    bind " + vip4 + "\n    cache\n    forward . " + upstream

// benchAnswer answers the names of test/bench. The namespace exists, so names in it are
// not answered from a cut.
func benchAnswer(q *dns.Msg) *dns.Msg {
	name, rcode := q.Question[0].Name, dns.RcodeNameError
	if strings.HasSuffix(name, ".bench.example.") && q.Question[0].Qtype == dns.TypeA {
		r := lab.ReplyAddress(q, "192.0.2.1")
		r.Answer[0].Header().Ttl = 3600
		return r
	}
	if name == "default.svc.cluster.local." {
		rcode = dns.RcodeSuccess
	}
	r := lab.Denial(q, rcode, "cluster.local.")
	r.Ns[0].Header().Ttl, r.Ns[0].(*dns.SOA).Minttl = 3600, 3600
	return r
}

const benchCorefile = `. {
    bind ` + vip4 + `
    cache {
        success 131072
        denial 131072
    }
    forward . ` + upstream + `
    prometheus ` + metrics + `
    OPTIONS
}
`

// enter makes a node with a server on the given CPUs. If program is empty, the kernel
// echoes packets.
func enter(t *testing.T, name, program, cpus string, options ...string) *contestant {
	t.Helper()
	n := newNode(t, benchAnswer)
	c := &contestant{name: name, node: n, echo: program == ""}
	if c.echo {
		n.turn(t, "cali1")
	} else {
		text := strings.Replace(benchCorefile, "OPTIONS", strings.Join(options, "\n    "), 1)
		args := []string{"taskset", "-c", cpus, program, "-conf", lab.WriteFile(t, t.TempDir()+"/Corefile", text)}
		if program == release.Path(t) {
			args = append(args, "-keep-privileges")
		}
		server := lab.Command{Netns: n.Netns, Args: args}.Start(t)
		c.pids = append(c.pids, server.PID())
		for late := time.Now().Add(time.Minute); !asks(t, n.routed, vip4+":53", "ready.example."); {
			if time.Now().After(late) {
				t.Fatalf("%s does not answer:\n%s", name, server.Err.Text())
			}
		}
	}
	for cpu := range c.generators {
		c.generators[cpu] = startGenerator(t, n.routed, cpu)
	}
	c.pids = append(c.pids, c.generators[0].pid)
	if !c.echo {
		c.fill(t)
	}
	return c
}

// enterSender makes a pod that drops its own queries before the veth: what remains is
// the cost of sending them.
func enterSender(t *testing.T) *contestant {
	t.Helper()
	c := enter(t, sender, "", "")
	c.dropped = true
	setNeighbour(t, c.node.routed, "eth0", "10.1.1.1", macOf(t, c.node.Netns, "cali1")) // ARP is dropped, too
	attach(t, c.node.routed, "eth0", drops(t), ebpf.AttachTCXEgress)
	return c
}

const sender = "sending alone"

// takeProgram detaches the program of nodens from the pod's veth.
func (c *contestant) takeProgram(t *testing.T) {
	t.Helper()
	c.node.Inside(t, func() error {
		veth, err := netlink.LinkByName("cali1")
		if err != nil {
			return err
		}
		found, err := link.QueryPrograms(link.QueryOptions{Target: veth.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		id, _ := found.Programs[0].LinkID()
		if c.program, err = ebpf.NewProgramFromID(found.Programs[0].ID); err != nil {
			return err
		}
		l, err := link.NewFromID(id)
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Detach()
	})
	t.Cleanup(func() { _ = c.program.Close() })
}

// measurePassing measures one server, without the program, then with it: another server may
// use some percent more CPU.
func (c *contestant) measurePassing(t *testing.T) (without, with figures) {
	t.Helper()
	without = c.measure(t, mixA, benchWindow, 1)
	var l link.Link
	c.node.Inside(t, func() error {
		veth, err := netlink.LinkByName("cali1")
		if err != nil {
			return err
		}
		l, err = link.AttachTCX(link.TCXOptions{Interface: veth.Attrs().Index, Program: c.program, Attach: ebpf.AttachTCXIngress})
		return err
	})
	defer l.Close()
	c.lease(t)
	return without, c.measure(t, mixA, benchWindow, 1)
}

// fill queries all names until the caches have them.
func (c *contestant) fill(t *testing.T) {
	t.Helper()
	for range 4 {
		for _, mix := range []int{mixA, mixB} {
			c.lease(t)
			c.generators[0].start(t, job{Mix: mix, Window: 32})
			c.generators[0].finish(t)
		}
	}
}

// figures are those of one round.
type figures struct {
	cpu     float64 // of server and client with their softirqs, µs per answer
	machine float64 // busy time of all CPUs, µs per answer
	rate    float64 // answers per second
	p50     float64 // µs
	p99     float64
}

// measure runs a job on one generator, or on both.
func (c *contestant) measure(t *testing.T, mix, window, generators int) figures {
	t.Helper()
	cpu, all := c.cpuTime(t), busy(t)
	for _, g := range c.generators[:generators] {
		g.start(t, job{Mix: mix, Window: window, Duration: benchRound, Echo: c.echo, Dropped: c.dropped})
	}
	var f figures
	answers := 0
	for _, g := range c.generators[:generators] {
		r := g.finish(t)
		if r.Wrong > 0 {
			t.Errorf("%s: %d wrong answers", c.name, r.Wrong)
		}
		if r.Lost > 0 { // a socket buffer overflows while other processes have the CPU
			t.Logf("%s: %d queries lost, %d answered", c.name, r.Lost, r.Answers)
		}
		answers += r.Answers
		f.rate += float64(r.Answers) / r.Wall.Seconds()
		f.p50, f.p99 = r.P50.Seconds()*1e6, r.P99.Seconds()*1e6
	}
	f.cpu = (c.cpuTime(t) - cpu).Seconds() * 1e6 / float64(answers)
	f.machine = (busy(t) - all).Seconds() * 1e6 / float64(answers)
	return f
}

// cpuTime is the run time of all threads of the measured processes.
func (c *contestant) cpuTime(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, pid := range c.pids {
		sum += lab.RunTime(t, pid)
	}
	return sum
}

// busy returns the busy time of all CPUs of the machine.
func busy(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	check(t, err)
	var ticks int
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line)[1:9] { // without guests, which are part of user
		if n, err := strconv.Atoi(field); err == nil && i != 3 && i != 4 && i != 7 { // idle, iowait, steal
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// The loads.
const (
	saturatedA = iota
	saturatedB
	alone
	bothCPUs
	withoutProgram // saturatedA
)

// TestVeth compares, from a pod across a veth: CoreDNS, nodens in user space, nodens with
// the fast path, and a BPF program that only echoes packets. make bench runs it.
func TestVeth(t *testing.T) {
	if *rounds == 0 {
		t.Skip("a benchmark: make bench")
	}
	const one, both = "1", "0,1"   // the CPUs of a server; the first generator has CPU 0
	const passing = "bufsize 1232" // answers of such a zone are not in the kernel
	nodens := release.Path(t)
	all := map[string]*contestant{}
	for _, c := range []*contestant{
		enter(t, "CoreDNS", lab.CoreDNS(t), one),
		enter(t, "user space", nodens, one),
		enter(t, "fast path", nodens, one, "fastpath on {", "entries 32768", "}"),
		enter(t, "kernel echo", "", one),
		enterSender(t),
		enter(t, "user space, both CPUs", nodens, both),
		enter(t, passed, nodens, one, passing, "fastpath on"),
		enter(t, passedLeased, nodens, one, passing, "fastpath on {", "lease 30s", "}", leasing),
	} {
		all[c.name] = c
	}
	for _, name := range []string{passed, passedLeased} {
		all[name].takeProgram(t)
	}
	r := report{}
	for range *rounds {
		for _, load := range []struct {
			kind, mix, window, generators int
			of                            []string
		}{
			{saturatedA, mixA, benchWindow, 1, []string{"CoreDNS", "user space", "fast path", "kernel echo", sender}},
			{saturatedB, mixB, benchWindow, 1, []string{"CoreDNS", "user space", "fast path"}},
			{alone, mixA, 1, 1, []string{"CoreDNS", "user space", "fast path", "kernel echo"}},
			{bothCPUs, mixA, benchWindow, 2, []string{"user space, both CPUs", "fast path", "kernel echo"}},
		} {
			for _, name := range load.of {
				k := key{load.kind, name}
				r[k] = append(r[k], all[name].measure(t, load.mix, load.window, load.generators))
			}
		}
		for _, name := range []string{passed, passedLeased} {
			for range passingPairs {
				without, with := all[name].measurePassing(t)
				r[key{withoutProgram, name}] = append(r[key{withoutProgram, name}], without)
				r[key{saturatedA, name}] = append(r[key{saturatedA, name}], with)
			}
		}
	}
	r.print(os.Stdout)
	if !r.goals(os.Stdout) && *goals {
		t.Error("below the goals")
	}
	checkKernel(t, all)
}

// checkKernel checks that the kernel gave the answers, and not the daemon.
func checkKernel(t *testing.T, all map[string]*contestant) {
	t.Helper()
	requests := func(name string) float64 {
		n, _ := all[name].node.Scrape(t, metrics).Sum("coredns_dns_requests_total")
		return n
	}
	if n := all["fast path"].node.answers(t); n < 0.9*requests("fast path") {
		t.Errorf("the kernel gave %v of %v answers; passed: %s", n, requests("fast path"), all["fast path"].node.passed(t))
	}
	if n := all[passed].node.answers(t); n > 0 {
		t.Errorf("the kernel gave %v answers of a zone whose queries it must pass", n)
	}
	leased := all[passedLeased].node
	if n, _ := leased.Scrape(t, metrics).Sum("nodens_kernel_passed_total", "reason=not_found"); n < 0.4*requests(passedLeased) { // the others were without the program
		t.Errorf("the program looked up only %v queries of clients with a lease: %s", n, leased.passed(t))
	}
}

// report has the figures of all rounds.
type report map[key][]figures

type key struct {
	load int
	name string
}

func cpu(f figures) float64     { return f.cpu }
func machine(f figures) float64 { return f.machine }
func rate(f figures) float64    { return f.rate }
func p50(f figures) float64     { return f.p50 }
func p99(f figures) float64     { return f.p99 }

// of returns the median of a figure over the rounds, or NaN if it was not measured.
func (r report) of(load int, name string, figure func(figures) float64) float64 {
	var all []float64
	for _, f := range r[key{load, name}] {
		all = append(all, figure(f))
	}
	return median(all)
}

// ratio returns the median of ratios.
func (r report) ratio(load int, name string, to int, other string, figure func(figures) float64) float64 {
	return median(r.ratios(load, name, to, other, figure))
}

// ratios returns the ratio within each round: other load slows both alike.
func (r report) ratios(load int, name string, to int, other string, figure func(figures) float64) (all []float64) {
	for i, f := range r[key{load, name}] {
		all = append(all, figure(f)/figure(r[key{to, other}][i]))
	}
	return all
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func (r report) print(w io.Writer) {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(w, "\nAcross a veth, client in a pod: %d names, medians of %d alternating rounds of %v. CPU: run time of client and server with their softirqs; machine: busy time of all CPUs, with other load (load average %s).\n\n",
		benchNames, *rounds, benchRound, strings.Join(strings.Fields(string(load))[:3], " "))
	fmt.Fprint(w, "| | CPU µs per hit A | B | machine A | hits/s A | lone query: CPU µs | p50 / p99 µs |\n|---|---|---|---|---|---|---|\n")
	for _, name := range []string{"CoreDNS", "user space", "fast path", "kernel echo"} {
		fmt.Fprintf(w, "| %s | %.2f | %.2f | %.2f | %.0f | %.2f | %.1f / %.1f |\n", name, r.of(saturatedA, name, cpu), r.of(saturatedB, name, cpu),
			r.of(saturatedA, name, machine), r.of(saturatedA, name, rate), r.of(alone, name, cpu), r.of(alone, name, p50), r.of(alone, name, p99))
	}
	fmt.Fprintf(w, "\nBoth CPUs, two generators: %.0f answers/s from the kernel, %.0f from user space, %.0f echoes.\n\n",
		r.of(bothCPUs, "fast path", rate), r.of(bothCPUs, "user space, both CPUs", rate), r.of(bothCPUs, "kernel echo", rate))
}

// goals prints the goals and reports whether all are met.
func (r report) goals(w io.Writer) (met bool) {
	const fast, user = "fast path", "user space"
	met = true
	fmt.Fprint(w, "| goal of the fast path | measured | at most | |\n|---|---|---|---|\n")
	for _, g := range []struct {
		what        string
		have, limit float64
	}{
		{"CPU per hit / CoreDNS", r.ratio(saturatedA, fast, saturatedA, "CoreDNS", cpu), 1.0 / 20},
		{"CPU per hit / kernel echo", r.ratio(saturatedA, fast, saturatedA, "kernel echo", cpu), 1.3},
		{"CPU per hit, mix B / A", r.ratio(saturatedB, fast, saturatedA, fast, cpu), 1.05},
		{"p50 of a lone query / CoreDNS", r.ratio(alone, fast, alone, "CoreDNS", p50), 1.0 / 15},
		{"CPU of a query that the program passes / without it", r.ratio(saturatedA, passed, withoutProgram, passed, cpu), 1.02},
		{"answers/s on both CPUs, user space / kernel", r.ratio(bothCPUs, user+", both CPUs", bothCPUs, fast, rate), 1.0 / 5},
	} {
		verdict := "met"
		if !(g.have <= g.limit) { // true for NaN, too
			verdict, met = "**missed**", false
		}
		fmt.Fprintf(w, "| %s | %.4f | %.4f | %s |\n", g.what, g.have, g.limit, verdict)
	}
	fmt.Fprintln(w)
	r.floor(w)
	return met
}

// floor prints how much of the goals the kernel echo alone uses: the client, its system
// calls and the veth, which no server can make cheaper. It also prints how much of that is
// sending.
func (r report) floor(w io.Writer) {
	const echo = "kernel echo"
	share := func(name string) float64 { return r.ratio(saturatedA, name, saturatedA, "CoreDNS", cpu) }
	fmt.Fprintf(w, "CPU per packet / CoreDNS's per hit: kernel echo %.4f; sending alone, without the veth, %.4f (%.2f µs). User space / echoes on both CPUs %.4f.\n",
		share(echo), share(sender), r.of(saturatedA, sender, cpu), r.ratio(bothCPUs, "user space, both CPUs", bothCPUs, echo, rate))
	for _, name := range []string{passed, passedLeased} {
		all := r.ratios(saturatedA, name, withoutProgram, name, cpu)
		fmt.Fprintf(w, "CPU per query, %s / without the program: median %.4f, all rounds %.4f.\n", name, median(all), all)
	}
	var added []float64
	for i, e := range r[key{saturatedA, echo}] {
		added = append(added, (r[key{saturatedA, "fast path"}][i].cpu-e.cpu)/(r[key{saturatedA, "CoreDNS"}][i].cpu-e.cpu))
	}
	fmt.Fprintf(w, "What the fast path adds to the echo / what CoreDNS adds: %.4f. This is no goal.\n\n", median(added))
}
