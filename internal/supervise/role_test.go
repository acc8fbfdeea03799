package supervise

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also the supervisor and the worker. envWorkers says what
// each worker does; all later workers do the same as the last one. envDir counts
// the workers.
const (
	envRole     = "NODENS_SUPERVISE_TEST_ROLE"
	envWorkers  = "NODENS_SUPERVISE_TEST_WORKERS"
	envDir      = "NODENS_SUPERVISE_TEST_DIR"
	envTimeouts = "NODENS_SUPERVISE_TEST_TIMEOUTS"
)

var testReport = Report{Cgroup: "/kube pods", Targets: []netip.AddrPort{netip.MustParseAddrPort("[fd00::2]:10053")}, Timeout: 50 * ms}

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "supervisor":
		supervisorMain()
	case "worker":
		workerMain()
	}
	os.Exit(m.Run())
}

func supervisorMain() {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil { // as PID 1
		panic(err)
	}
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(envTimeouts)), &cfg); err != nil {
		panic(err)
	}
	env := append(without(os.Environ(), envRole), envRole+"=worker")
	cfg.Program = Program{Path: "/proc/self/exe", Args: os.Args, Env: env}
	cfg.Disconnect = func(r Report) { fmt.Println("disconnect", r.Cgroup, r.Targets) }
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	status, err := Run(signals, cfg)
	if err != nil {
		panic(err)
	}
	os.Exit(status)
}

func workerMain() {
	heartbeat, err := Attach(os.Getenv)
	if err != nil {
		panic(err)
	}
	workers := strings.Fields(os.Getenv(envWorkers))
	n := count(os.Getenv(envDir))
	role := workers[min(n, len(workers)-1)]
	fmt.Println("worker", n, role, os.Getpid(), heartbeat.PID())
	if heartbeat.Restarted() != (n > 0) {
		panic("restarted: not as counted")
	}
	send := func() {
		if err := heartbeat.Send(testReport); err != nil {
			panic(err)
		}
	}
	term := make(chan os.Signal, 4)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1)
	self := func(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }
	switch role {
	case "exit7":
		os.Exit(7)
	case "no-heartbeat":
		select {}
	case "crash":
		send()
		self(syscall.SIGKILL)
		select {}
	case "crash7":
		send()
		os.Exit(7)
	case "end":
		send()
		os.Exit(0)
	case "stop":
		send()
		self(syscall.SIGSTOP)
	case "fork":
		cmd := exec.Command("sh", "-c", "true & echo orphan $!")
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			panic(err)
		}
	case "ignore-term":
		send()
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("serving")
		select {}
	}
	serve(heartbeat, send, term)
}

// serve sends heartbeats until a signal ends it.
func serve(heartbeat *Heartbeat, send func(), signals <-chan os.Signal) {
	tick := time.NewTicker(5 * ms)
	send()
	fmt.Println("serving")
	for {
		select {
		case <-tick.C:
			send()
		case s := <-signals:
			send() // resets the watchdog
			fmt.Println("got", s)
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				os.Exit(0)
			}
		case <-heartbeat.Orphaned():
			fmt.Println("orphaned")
			os.Exit(0)
		}
	}
}

// count counts the workers from 0.
func count(dir string) int {
	for n := 0; ; n++ {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(n)), 0o700); err == nil {
			return n
		}
	}
}
