package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Command is a program that runs in a namespace.
type Command struct {
	Netns *Netns
	Args  []string          // the program and its arguments
	Binds map[string]string // bind mounts that only the program sees: path → replacement
	Env   []string          // added to the environment
	Forks bool              // run it in a PID namespace and a process group, so that its children end with it
	// Cgroup is the directory of its cgroup v2. If it is empty, it runs in the
	// test's.
	Cgroup string
}

// args wraps the program in a mount namespace. The program runs with the PID that
// was started.
func (c Command) args() []string {
	if len(c.Binds) == 0 {
		return c.Args
	}
	const script = `while [ "$1" != -- ]; do mount --bind "$2" "$1" || exit 126; shift 2; done; shift; exec "$@"`
	args := []string{"unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"}
	for path, with := range c.Binds {
		args = append(args, path, with)
	}
	return append(append(args, "--"), c.Args...)
}

func (c Command) cmd(ctx context.Context) *exec.Cmd {
	args := c.args()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// By default a race-checked program sleeps for a second when it exits.
	cmd.Env = slices.Concat(os.Environ(), []string{"GORACE=atexit_sleep_ms=0"}, c.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.Forks {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
		cmd.SysProcAttr.Setpgid = true
	}
	return cmd
}

// start starts cmd in the namespace and the cgroup.
func (c Command) start(cmd *exec.Cmd) error {
	if c.Cgroup != "" {
		dir, err := os.Open(c.Cgroup)
		if err != nil {
			return err
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	return c.Netns.Do(cmd.Start)
}

// Output runs the program until it ends and returns its standard output, its
// standard error and its exit status.
func (c Command) Output(t testing.TB) (stdout, stderr string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*waitTimeout)
	defer cancel()
	cmd := c.cmd(ctx)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := c.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %v: %v", c.Args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Nft runs commands of nft in the namespace, separated by semicolons, and returns their
// output.
func (n *Netns) Nft(t testing.TB, commands string) string {
	t.Helper()
	NeedTools(t, "nft")
	stdout, stderr, status := Command{Netns: n, Args: []string{"nft", commands}}.Output(t)
	if status != 0 {
		t.Fatalf("nft %s: %s", commands, stderr)
	}
	return stdout
}

// Process is a running program.
type Process struct {
	Out, Err *Lines
	cmd      *exec.Cmd
	done     chan struct{} // closed after the process has ended and its output is read
}

// Start starts the program. It is killed at the end of the test.
func (c Command) Start(t testing.TB) *Process {
	t.Helper()
	p := &Process{Out: newLines(), Err: newLines(), done: make(chan struct{})}
	p.cmd = c.cmd(context.Background())
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.start(p.cmd); err != nil {
		t.Fatalf("start %v: %v", c.Args, err)
	}
	go func() {
		defer close(p.done)
		read := make(chan struct{})
		go func() { defer close(read); p.Out.read(stdout) }()
		p.Err.read(stderr)
		<-read
		_ = p.cmd.Wait()
	}()
	t.Cleanup(p.Kill)
	return p
}

// Signal sends a signal to the process.
func (p *Process) Signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("signal %v: %v", s, err)
	}
}

// SignalAll sends a signal to the process group of a process started with Forks.
func (p *Process) SignalAll(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-p.cmd.Process.Pid, s); err != nil {
		t.Fatalf("signal %v: %v", s, err)
	}
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// PID is the process ID, also after the process has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the process to end and returns its exit status.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(waitTimeout):
		t.Fatalf("%v did not end:\n%s", p.cmd.Args, p.Err.Text())
	}
	return p.cmd.ProcessState.ExitCode()
}
