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

// The test's binary is the supervisor and the worker too. envLives says what
// each worker in turn does, the last one again and again; envDir counts them.
const (
	envRole  = "NODENS_SUPERVISE_TEST_ROLE"
	envLives = "NODENS_SUPERVISE_TEST_LIVES"
	envDir   = "NODENS_SUPERVISE_TEST_DIR"
	envTimes = "NODENS_SUPERVISE_TEST_TIMES"
)

var testReport = Report{Cgroup: "/kube pods", Targets: []netip.AddrPort{netip.MustParseAddrPort("[fd00::2]:10053")}, Silence: 50 * ms}

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
	var times Config
	if err := json.Unmarshal([]byte(os.Getenv(envTimes)), &times); err != nil {
		panic(err)
	}
	env := append(without(os.Environ(), envRole), envRole+"=worker")
	status, err := Run(signals, Config{
		Program: Program{Path: "/proc/self/exe", Args: os.Args, Env: env},
		Start:   times.Start, Hung: times.Hung, Stop: times.Stop,
		Free:   func(r Report) { fmt.Println("free", r.Cgroup, r.Targets) },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		panic(err)
	}
	os.Exit(status)
}

func workerMain() {
	beats, err := Attach(os.Getenv)
	if err != nil {
		panic(err)
	}
	lives := strings.Fields(os.Getenv(envLives))
	n := generation(os.Getenv(envDir))
	life := lives[min(n, len(lives)-1)]
	fmt.Println("worker", n, life, os.Getpid(), beats.PID())
	beat := func() {
		if err := beats.Beat(testReport); err != nil {
			panic(err)
		}
	}
	term := make(chan os.Signal, 4)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1)
	self := func(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }
	switch life {
	case "exit7":
		os.Exit(7)
	case "mute":
		select {}
	case "crash":
		beat()
		self(syscall.SIGKILL)
		select {}
	case "crash7":
		beat()
		os.Exit(7)
	case "end":
		beat()
		os.Exit(0)
	case "stop":
		beat()
		self(syscall.SIGSTOP)
	case "fork":
		cmd := exec.Command("sh", "-c", "true & echo orphan $!")
		cmd.Stdout = os.Stdout
		if err := cmd.Run(); err != nil {
			panic(err)
		}
	case "deaf":
		beat()
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("serving")
		select {}
	}
	serveBeats(beats, beat, term)
}

// serveBeats beats until it is told to end.
func serveBeats(beats *Beats, beat func(), signals <-chan os.Signal) {
	tick := time.NewTicker(5 * ms)
	beat()
	fmt.Println("serving")
	for {
		select {
		case <-tick.C:
			beat()
		case s := <-signals:
			beat() // what comes after is another silence
			fmt.Println("got", s)
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				os.Exit(0)
			}
		case <-beats.Orphaned():
			fmt.Println("orphaned")
			os.Exit(0)
		}
	}
}

// generation counts the workers from 0.
func generation(dir string) int {
	for n := 0; ; n++ {
		if err := os.Mkdir(filepath.Join(dir, fmt.Sprint(n)), 0o700); err == nil {
			return n
		}
	}
}
