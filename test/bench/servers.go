package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// coreDNSVersion is the CoreDNS to compare with.
const coreDNSVersion = "v1.14.7"

// Names of the servers. The echoes do not resolve names.
const (
	nodens  = "nodens"
	coreDNS = "coredns"
	unbound = "unbound"
	dnsmasq = "dnsmasq"
	goEcho  = "Go mmsg echo"
	cEcho   = "C mmsg echo"
)

// errAbsent means that a peer is not installed.
var errAbsent = errors.New("not installed")

// server is a measured process.
type server struct {
	name    string
	version string
	addr    netip.AddrPort
	metrics netip.AddrPort // address of /metrics, if it has one
	status  netip.AddrPort // of nodens
	cmd     *exec.Cmd
	log     string        // path
	start   time.Duration // from exec to the first answer
}

func (s *server) pid() int   { return s.cmd.Process.Pid }
func (s *server) echo() bool { return s.name == goEcho || s.name == cEcho }

// env is what all servers need.
type env struct {
	dir       string // temporary, removed at the end
	self      string // path of this program
	serverCPU int
	upstream  netip.AddrPort
	names     int    // minimum cache size in names
	grown     int    // the same for nodens
	coreDNS   string // path of a binary; if empty, it is built
	search    bool   // for the search paths
}

// start runs the server with that name and waits until it answers.
func (e *env) start(ctx context.Context, name string, ip netip.Addr) (*server, error) {
	s := &server{name: name, log: filepath.Join(e.dir, name+".log")}
	var err error
	if s.addr, err = freePort(ip); err != nil {
		return nil, err
	}
	if s.metrics, err = freePort(ip); err != nil {
		return nil, err
	}
	if s.status, err = freePort(ip); err != nil {
		return nil, err
	}
	argv, err := e.prepare(ctx, s)
	if err != nil {
		return nil, err
	}
	logFile, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	s.cmd = exec.CommandContext(ctx, e.self, append([]string{"pinned", strconv.Itoa(e.serverCPU)}, argv...)...)
	s.cmd.Stdout, s.cmd.Stderr = logFile, logFile
	s.cmd.SysProcAttr = dieWithParent()
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = 5 * time.Second
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.wait(ctx); err != nil {
		text, _ := os.ReadFile(s.log)
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, text), s.stop())
	}
	s.start = time.Since(began)
	return s, nil
}

// wait polls until the server answers.
func (s *server) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	c := dns.Client{Timeout: 20 * time.Millisecond}
	q := new(dns.Msg).SetQuestion("ready.example.", dns.TypeA)
	for {
		if _, _, err := c.ExchangeContext(ctx, q, s.addr.String()); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s", s.name)
		case <-time.After(time.Millisecond):
		}
	}
}

// stop ends the process, if needed with SIGKILL, and waits for it.
func (s *server) stop() error {
	force := time.AfterFunc(s.cmd.WaitDelay, func() { _ = s.cmd.Process.Kill() })
	defer force.Stop()
	if err := s.cmd.Cancel(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := s.cmd.Wait()
	if err != nil && !errors.As(err, new(*exec.ExitError)) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("stop %s: %w", s.name, err)
	}
	return nil
}

// prepare builds or finds the program, writes its configuration, and returns the
// command line.
func (e *env) prepare(ctx context.Context, s *server) ([]string, error) {
	switch s.name {
	case nodens, uncounted:
		return e.prepareNodens(ctx, s)
	case coreDNS:
		return e.prepareCoreDNS(ctx, s)
	case unbound:
		return e.prepareUnbound(ctx, s)
	case dnsmasq:
		return e.prepareDnsmasq(ctx, s)
	case cEcho:
		return e.prepareEcho(ctx, s)
	case goEcho:
		return []string{e.self, "echo", s.addr.String()}, nil
	}
	return nil, fmt.Errorf("unknown server %q", s.name)
}

func (e *env) prepareNodens(ctx context.Context, s *server) ([]string, error) {
	bin, args := filepath.Join(e.dir, s.name), []string{"build", "-trimpath", "-ldflags=-s -w"}
	if s.name == uncounted {
		overlay, err := e.withoutStatistics(ctx)
		if err != nil {
			return nil, err
		}
		args = append(args, "-overlay", overlay)
	}
	build := exec.CommandContext(ctx, "go", append(args, "-o", bin, "github.com/nodens-dns/nodens/cmd/nodens")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", s.name, err, out)
	}
	conf, err := e.write(s.name+".corefile", e.corefile(s))
	if err != nil {
		return nil, err
	}
	s.version = "this tree"
	return []string{bin, "-basecorefile=", "-conf", conf, "-status-address", s.status.String(), "-cache-size", strconv.Itoa(max(64<<20, e.grown*400))}, nil
}

func (e *env) prepareCoreDNS(ctx context.Context, s *server) ([]string, error) {
	bin := e.coreDNS
	if bin == "" {
		bin = filepath.Join(e.dir, "coredns")
		install := exec.CommandContext(ctx, "go", "install", "github.com/coredns/coredns@"+coreDNSVersion)
		install.Env = append(os.Environ(), "GOBIN="+e.dir, "CGO_ENABLED=0")
		if out, err := install.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: go install coredns@%s: %v\n%s", errAbsent, coreDNSVersion, err, out)
		}
	}
	conf, err := e.write("coredns.corefile", e.corefile(s))
	if err != nil {
		return nil, err
	}
	s.version = strings.TrimPrefix(firstLine(ctx, bin, "-version"), "CoreDNS-")
	return []string{bin, "-conf", conf}, nil
}

// corefile is the same for nodens and CoreDNS. It sets CoreDNS's capacities: the
// default is smaller than the number of names, and the shards fill unevenly.
func (e *env) corefile(s *server) string {
	if e.search {
		return e.searchCorefile(s)
	}
	return fmt.Sprintf(`.:%d {
    bind %s
    errors
    cache {
        success %[3]d
        denial %[3]d
    }
    reload
    loop
    forward . %s
    prometheus %s
}
`, s.addr.Port(), s.addr.Addr(), e.capacity(s), e.upstream, s.metrics)
}

//go:embed echo/echo.c
var echoSource string

func (e *env) prepareEcho(ctx context.Context, s *server) ([]string, error) {
	cc, err := find("cc")
	if err != nil {
		return nil, err
	}
	source, err := e.write("echo.c", echoSource)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(e.dir, "echo")
	if out, err := exec.CommandContext(ctx, cc, "-O2", "-o", bin, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the echo: %w\n%s", err, out)
	}
	return []string{bin, s.addr.Addr().String(), strconv.Itoa(int(s.addr.Port()))}, nil
}

// capacity is in names. For nodens the limit is in bytes.
func (e *env) capacity(s *server) int {
	if s.name == nodens || s.name == uncounted {
		return 4 * e.grown
	}
	return 4 * e.names
}

func (e *env) prepareUnbound(ctx context.Context, s *server) ([]string, error) {
	bin, err := find(unbound)
	if err != nil {
		return nil, err
	}
	conf, err := e.write("unbound.conf", fmt.Sprintf(`server:
    interface: %s@%d
    access-control: 127.0.0.0/8 allow
    do-not-query-localhost: no
    num-threads: 1
    module-config: "iterator"
    msg-cache-size: %[3]dk
    rrset-cache-size: %[3]dk
    do-daemonize: no
    use-syslog: no
    chroot: ""
    username: ""
    pidfile: ""
    directory: %q
remote-control:
    control-enable: no
forward-zone:
    name: "."
    forward-addr: %s@%d
`, s.addr.Addr(), s.addr.Port(), max(65536, e.names*2), e.dir, e.upstream.Addr(), e.upstream.Port()))
	if err != nil {
		return nil, err
	}
	s.version = strings.TrimPrefix(firstLine(ctx, bin, "-V"), "Version ")
	return []string{bin, "-d", "-c", conf}, nil
}

func (e *env) prepareDnsmasq(ctx context.Context, s *server) ([]string, error) {
	bin, err := find(dnsmasq)
	if err != nil {
		return nil, err
	}
	_, v, _ := strings.Cut(firstLine(ctx, bin, "--version"), "ersion ")
	s.version, _, _ = strings.Cut(v, " ")
	argv := []string{bin, "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file", "--no-resolv", "--no-hosts",
		"--bind-interfaces", "--listen-address=" + s.addr.Addr().String(), fmt.Sprintf("--port=%d", s.addr.Port()),
		fmt.Sprintf("--server=%s#%d", e.upstream.Addr(), e.upstream.Port()),
		fmt.Sprintf("--cache-size=%d", 2*e.names), "--dns-forward-max=1000"}
	if os.Geteuid() == 0 {
		argv = append(argv, "--user=root", "--group=root")
	}
	return argv, nil
}

// find looks for a program, also in directories for root's programs.
func find(name string) (string, error) {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if p, err := exec.LookPath(path); err == nil {
			return p, nil
		}
	}
	return "", errAbsent
}

func (e *env) write(name, text string) (string, error) {
	path := filepath.Join(e.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// firstLine is the first line that a command prints, with any exit code.
func firstLine(ctx context.Context, argv ...string) string {
	out, _ := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	line, _, _ := bytes.Cut(out, []byte("\n"))
	return string(line)
}

// gauge reads one value without labels from the server's metrics.
func (s *server) gauge(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics.String()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(field(string(text), name+" "), 64)
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w", name, s.name, err)
	}
	return v, nil
}
