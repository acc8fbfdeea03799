// The program bench compares nodens, its peers and an echo on loopback addresses:
// CPU per answer, latency, idle cost, memory. It prints Markdown.
//
//	go run ./test/bench          # about six minutes, after the builds
//	go run ./test/bench -check   # and exits 1 if a goal is missed
//	go run ./test/bench -only statistics -rounds 21 -seconds 0.7
//	go run ./test/bench -readme docs/pictures/bench.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	err := run(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures, or does the work of a child process.
func run(args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return compare(ctx, args)
	}
	switch {
	case args[0] == "pinned" && len(args) > 2:
		cpu, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return pinAndExec(cpu, args[2:])
	case args[0] == "generate" && len(args) == 1:
		return generate(os.Stdin, os.Stdout)
	case args[0] == "echo" && len(args) == 2:
		return echo(args[1])
	case args[0] == "view" && len(args) == 2:
		return view(context.Background(), args[1])
	}
	return fmt.Errorf("unexpected arguments %q; see -h", args)
}

// The values of -only.
const (
	searchOnly     = "search"
	statisticsOnly = "statistics"
)

// options are the flags.
type options struct {
	rounds       int
	length       time.Duration // of a round
	idle         time.Duration
	names        int
	filled       int // names in all caches at the end
	grown        int // names in nodens at the end
	readme       string
	peers        []string
	coreDNS      string
	check        bool
	only         string // section to measure; empty: all
	serverCPU    int
	generatorCPU int
}

func parseOptions(args []string) (options, error) {
	o := options{peers: []string{coreDNS, unbound, dnsmasq}}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.IntVar(&o.rounds, "rounds", 5, "alternating `rounds` of each load")
	seconds := fs.Float64("seconds", 1, "`seconds` of a round")
	fs.DurationVar(&o.idle, "idle", 10*time.Second, "`time` to measure the servers without queries")
	fs.IntVar(&o.names, "names", 10_000, "`number` of names for hits")
	fs.IntVar(&o.filled, "fill", 100_000, "`number` of names in all caches at the end")
	fs.IntVar(&o.grown, "grow", 1_000_000, "`number` of names in nodens's cache at the end")
	fs.StringVar(&o.readme, "readme", "", "also write a summary between the marks in `file`")
	fs.Func("peers", "comma-separated `servers` to compare with nodens and the echo (default "+strings.Join(o.peers, ",")+")", func(s string) error {
		o.peers = strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
		for _, p := range o.peers {
			if !slices.Contains([]string{coreDNS, unbound, dnsmasq}, p) {
				return fmt.Errorf("unknown peer %q", p)
			}
		}
		return nil
	})
	fs.StringVar(&o.coreDNS, "coredns", "", "`file` of a CoreDNS binary; by default "+coreDNSVersion+" is built")
	fs.BoolVar(&o.check, "check", false, "compare with the goals and exit 1 if one is missed")
	fs.StringVar(&o.only, "only", "", "measure only one `section`: search or statistics")
	fs.IntVar(&o.serverCPU, "server-cpu", 1, "`CPU` of the servers")
	fs.IntVar(&o.generatorCPU, "generator-cpu", 0, "`CPU` of the generator and of the upstream")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.length = time.Duration(*seconds * float64(time.Second))
	switch {
	case o.only != "" && o.only != searchOnly && o.only != statisticsOnly:
		return o, fmt.Errorf("-only %s: want %s or %s", o.only, searchOnly, statisticsOnly)
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.rounds < 1 || o.length < 10*time.Millisecond || o.idle <= 0:
		return o, errors.New("need at least one round of at least 0.01 seconds, and idle time")
	case o.names < 10 || o.filled < o.names+o.rounds || o.grown <= o.filled || o.grown > maxNames:
		return o, fmt.Errorf("want 10 ≤ -names < -fill < -grow ≤ %d", maxNames)
	case o.serverCPU == o.generatorCPU:
		return o, errors.New("servers and generator need one CPU each")
	}
	return o, nil
}

// compare measures and reports.
func compare(ctx context.Context, args []string) (err error) {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "nodens-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{options: o, progress: os.Stderr}
	if b.upstream, err = startUpstream(address(0)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.upstream.stop(context.WithoutCancel(ctx))) }()
	e := &env{dir: dir, self: self, serverCPU: o.serverCPU, upstream: b.upstream.addr, names: o.filled, grown: o.grown, coreDNS: o.coreDNS}
	defer func() { err = errors.Join(err, b.stop()) }()
	return b.sections(ctx, e)
}

// sections measures what -only selects, and reports it.
func (b *bench) sections(ctx context.Context, e *env) (err error) {
	f := new(figures)
	if b.only == "" {
		if err := b.startAll(ctx, e); err != nil {
			return err
		}
	}
	if b.only != searchOnly {
		if err := b.startGenerator(ctx, e.self); err != nil {
			return err
		}
		if err := pinSelf(b.generatorCPU); err != nil {
			return err
		}
	}
	if b.only == "" {
		if err := b.run(ctx, f); err != nil {
			return err
		}
	}
	if b.only != searchOnly {
		if f.statistics, err = b.measureStatistics(ctx, e); err != nil {
			return fmt.Errorf("statistics: %w", err)
		}
	}
	if b.only != statisticsOnly {
		if f.search, err = b.measureSearch(ctx, e); err != nil {
			return err
		}
	}
	switch b.only {
	case searchOnly:
		b.reportSearch(os.Stdout, f.search)
		return nil
	case statisticsOnly:
		b.reportStatistics(os.Stdout, f.statistics)
		return nil
	}
	return b.conclude(os.Stdout, f)
}

func (b *bench) conclude(w io.Writer, f *figures) error {
	b.report(w, f)
	if b.readme != "" {
		if err := b.updateReadme(f); err != nil {
			return err
		}
	}
	if !b.check {
		return nil
	}
	return check(w, b.goals(f))
}

// startAll starts nodens, the installed peers and the echo.
func (b *bench) startAll(ctx context.Context, e *env) error {
	for i, name := range slices.Concat([]string{nodens}, b.peers, []string{goEcho, cEcho}) {
		s, err := e.start(ctx, name, address(i+1))
		if errors.Is(err, errAbsent) {
			fmt.Fprintf(b.progress, "without %s: %v\n", name, err)
			continue
		}
		if err != nil {
			return err
		}
		b.servers = append(b.servers, s)
	}
	return nil
}

func (b *bench) stop() error {
	var errs []error
	for _, s := range b.servers {
		errs = append(errs, s.stop())
	}
	if b.generator != nil && b.generator.Process != nil {
		_ = b.generator.Process.Kill()
		_ = b.generator.Wait()
	}
	return errors.Join(errs...)
}

// address is the loopback address of the i-th process.
func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 53, 0, byte(i + 1)}) }
