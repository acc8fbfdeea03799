package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/nodens-dns/nodens/internal/lab"
	"golang.org/x/sys/unix"
)

func TestOpenErrors(t *testing.T) {
	p := newPod(t)
	for _, tc := range []struct {
		name   string
		change func(*RedirectConfig)
		want   error
		says   string
	}{
		{"no bpffs", func(c *RedirectConfig) { c.PinDir = filepath.Join(t.TempDir(), "a", "b") }, ErrNoBPFFS, "mount -t bpf"},
		{"root", func(c *RedirectConfig) { c.Cgroup = lab.CgroupMount(t) }, ErrCgroup, "is the root"},
		{"no cgroup", func(c *RedirectConfig) { c.Cgroup = t.TempDir() }, ErrCgroup, "not a cgroup v2"},
		{"missing", func(c *RedirectConfig) { c.Cgroup = filepath.Join(p.kubepods, "gone") }, ErrCgroup, "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := p.config(t)
			tc.change(&cfg)
			r, err := OpenRedirect(cfg)
			if r != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q with %q", err, tc.want, tc.says)
			}
			if _, err := os.Stat(cfg.PinDir); err == nil {
				t.Error("OpenRedirect left pins")
			}
		})
	}
	if err := Teardown(t.TempDir()); !errors.Is(err, ErrNoBPFFS) {
		t.Errorf("teardown outside a BPF file system: %v", err)
	}
}

// Maps with another layout in our version's directory stay unchanged.
func TestForeignMapInPlace(t *testing.T) {
	p := newPod(t)
	cfg := p.config(t)
	dir := versionDir(cfg.PinDir, layoutVersion)
	check(t, os.MkdirAll(dir, 0o700))
	defer os.RemoveAll(cfg.PinDir)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 2, ValueSize: 2, MaxEntries: 1})
	check(t, err)
	defer m.Close()
	check(t, m.Pin(filepath.Join(dir, redirectMapServices)))
	_, err = OpenRedirect(cfg)
	if !errors.Is(err, ebpf.ErrMapIncompatible) || !strings.Contains(err.Error(), "teardown") {
		t.Errorf("error %v, want one that names teardown", err)
	}
}

// The error names a program above that is attached without BPF_F_ALLOW_MULTI, and
// none of our programs stays attached.
func TestAncestorProgram(t *testing.T) {
	for _, tc := range []struct {
		name     string
		flags    uint32
		override bool
	}{
		{"none", 0, false},
		{"override", unix.BPF_F_ALLOW_OVERRIDE, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPod(t)
			parent := filepath.Dir(p.kubepods)
			prog := allowProgram(t, ebpf.AttachCGroupInet4Connect)
			attachLegacy(t, parent, prog, ebpf.AttachCGroupInet4Connect, tc.flags)
			r := open(t, p.config(t))
			err := r.Attach()
			var ancestor *AncestorError
			if !errors.Is(err, ErrAncestor) || !errors.As(err, &ancestor) {
				t.Fatalf("error %v, want ErrAncestor", err)
			}
			if ancestor.Cgroup != parent || ancestor.Hook != "connect4" || ancestor.Override != tc.override {
				t.Errorf("%+v", ancestor)
			}
			checkNames(t, filepath.Join(r.dir, linksDir), 0)
			checkAttached(t, p.kubepods, 0)
		})
	}
	t.Run("multi", func(t *testing.T) {
		p := newPod(t)
		prog := allowProgram(t, ebpf.AttachCGroupInet4Connect)
		attachLegacy(t, filepath.Dir(p.kubepods), prog, ebpf.AttachCGroupInet4Connect, unix.BPF_F_ALLOW_MULTI)
		r := open(t, p.config(t))
		check(t, r.Attach())
	})
}

// allowProgram returns a program that allows every call unchanged.
func allowProgram(t *testing.T, attach ebpf.AttachType) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   attach,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	check(t, err)
	t.Cleanup(func() { _ = prog.Close() })
	return prog
}

// attachLegacy attaches without a link until the test ends.
func attachLegacy(t *testing.T, dir string, prog *ebpf.Program, attach ebpf.AttachType, flags uint32) {
	t.Helper()
	f, err := os.Open(dir)
	check(t, err)
	target := int(f.Fd())
	check(t, link.RawAttachProgram(link.RawAttachProgramOptions{Target: target, Program: prog, Attach: attach, Flags: flags}))
	t.Cleanup(func() {
		if err := link.RawDetachProgram(link.RawDetachProgramOptions{Target: target, Program: prog, Attach: attach}); err != nil {
			t.Error(err)
		}
		_ = f.Close()
	})
}

const envCaps = "NODENS_BPF_TEST_CAPS"

// A process with the documented capabilities can redirect. Without them, it gets
// ErrPermission.
func TestCapabilities(t *testing.T) {
	p := newPod(t)
	for name, want := range map[string]string{"documented": "", "none": ErrPermission.Error(), "no PERFMON": ErrPermission.Error()} {
		t.Run(name, func(t *testing.T) {
			pinDir := filepath.Join(lab.BPFFS, strings.ReplaceAll(t.Name(), "/", "_"))
			pinDir = strings.ReplaceAll(pinDir, " ", "_")
			defer func() { check(t, Teardown(pinDir)) }()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envRole+"=capabilities", envCaps+"="+name, "CGROUP="+p.kubepods, "PIN_DIR="+pinDir)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if got := string(out); err != nil || want == "" && got != "ok" || !strings.Contains(got, want) {
				t.Errorf("%q (%v), want %q", got, err, want)
			}
		})
	}
}

// capabilitiesMain does what a daemon does, and prints "ok" or the error.
func capabilitiesMain() {
	runtime.LockOSThread()
	caps := []uint{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON, unix.CAP_NET_BIND_SERVICE}
	switch os.Getenv(envCaps) {
	case "none":
		caps = nil
	case "no PERFMON":
		caps = []uint{unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE}
	}
	err := setCapabilities(caps)
	if err == nil {
		err = redirectOnce(RedirectConfig{
			Cgroup: os.Getenv("CGROUP"), PinDir: os.Getenv("PIN_DIR"),
			Services: []Service{{VIP: ap(vip4), Target: ap(target4), Fallbacks: eps(core4)}},
		})
	}
	if err != nil {
		_, _ = os.Stdout.WriteString(err.Error())
		return
	}
	_, _ = os.Stdout.WriteString("ok")
}

func redirectOnce(cfg RedirectConfig) error {
	r, err := OpenRedirect(cfg)
	if err != nil {
		return err
	}
	return errors.Join(r.Attach(), r.Attach(), r.Alive(), r.SetFallbacks(ap(vip4), nil), r.Withdraw(), r.Close(), Teardown(cfg.PinDir))
}

// setCapabilities changes those of the calling thread.
func setCapabilities(caps []uint) error {
	var data [2]unix.CapUserData
	for _, c := range caps {
		data[c/32].Permitted |= 1 << (c % 32)
		data[c/32].Effective |= 1 << (c % 32)
	}
	return os.NewSyscallError("capset", unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]))
}
