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

// pinAndExec becomes the program argv on one CPU. What a runtime sizes by the
// CPUs that it may use is sized for one.
func pinAndExec(cpu int, argv []string) error {
	runtime.LockOSThread() // the thread that calls execve passes its affinity on
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return fmt.Errorf("execute %s: %w", argv[0], syscall.Exec(argv[0], argv, os.Environ()))
}

// dieWithParent makes the kernel end a child when this process is killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// pinSelf moves all threads of this process to one CPU; later ones inherit it.
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

// cpuTime is the time that all threads of a process have run:
// sum_exec_runtime, which unlike utime and stime does not count ticks.
func cpuTime(proc fs.FS, pid int) (time.Duration, error) {
	files, err := fs.Glob(proc, filepath.Join(strconv.Itoa(pid), "task/*/schedstat"))
	if err != nil {
		return 0, err
	}
	if len(files) == 0 {
		return 0, fmt.Errorf("process %d: %w; or the kernel is without CONFIG_SCHED_INFO", pid, fs.ErrNotExist)
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
			return 0, fmt.Errorf("%s: %q is not what proc(5) says", name, b)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// residentMemory is VmRSS of a process in octets.
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

// field is what follows key on the first line that begins with it.
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// machine describes what we run on, without its name.
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
