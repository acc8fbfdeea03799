package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pinAndExec runs the program argv in this process on one CPU. A runtime that
// sizes itself by the available CPUs sees one.
func pinAndExec(cpu int, argv []string) error {
	runtime.LockOSThread() // execve keeps the affinity of the calling thread
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return fmt.Errorf("execute %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}

// dieWithParent makes the kernel kill the child when this process ends.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// pinSelf moves all threads of this process to one CPU. Later threads inherit it.
func pinSelf(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
			return fmt.Errorf("pin to CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// cpuTime is the CPU time of all threads of a process: sum_exec_runtime, which
// unlike utime and stime does not count ticks.
func cpuTime(proc fs.FS, pid int) (time.Duration, error) {
	files, err := fs.Glob(proc, filepath.Join(strconv.Itoa(pid), "task/*/schedstat"))
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, fmt.Errorf("process %d: %w (or the kernel lacks CONFIG_SCHED_INFO)", pid, fs.ErrNotExist)
	}
	var sum time.Duration
	for _, name := range files {
		b, err := fs.ReadFile(proc, name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // a thread that has just ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := bytes.Cut(b, []byte(" "))
		ns, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %q does not match proc(5)", name, b)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// residentMemory is VmRSS of a process in bytes.
func residentMemory(proc fs.FS, pid int) (int64, error) {
	b, err := fs.ReadFile(proc, filepath.Join(strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	kb, err := strconv.ParseInt(strings.TrimSuffix(field(string(b), "VmRSS:"), " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("VmRSS of process %d: %w", pid, err)
	}
	return kb << 10, nil
}

// field is the text after key on the first line that starts with it.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// machine describes this machine, without its name.
func machine() string {
	info, _ := os.ReadFile("/proc/cpuinfo")
	model := strings.TrimSpace(strings.TrimPrefix(field(string(info), "model name"), ":"))
	if model == "" {
		model = "unknown CPU"
	}
	if hypervisor := " hypervisor"; strings.Contains(field(string(info), "flags"), hypervisor) {
		model += " (virtual)"
	}
	var u unix.Utsname
	_ = unix.Uname(&u)
	return fmt.Sprintf("%s, %d CPUs, Linux %s %s", model, strings.Count(string(info), "processor\t"), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]))
}
