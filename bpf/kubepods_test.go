package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

func TestFindKubepods(t *testing.T) {
	const v1 = "31 24 0:28 / ROOT/sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n"
	for _, tc := range []struct {
		name  string
		mount string // lines of mountinfo; ROOT stands for a directory
		dirs  []string
		want  string // directory, or part of the error
	}{
		{"pure, systemd", "30 24 0:27 / ROOT/sys/fs/cgroup rw - cgroup2 cgroup2 rw",
			[]string{"sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice", "sys/fs/cgroup/system.slice"},
			"sys/fs/cgroup/kubepods.slice"},
		{"pure, cgroupfs", "30 24 0:27 / ROOT/sys/fs/cgroup rw - cgroup2 cgroup2 rw",
			[]string{"sys/fs/cgroup/kubepods/burstable"},
			"sys/fs/cgroup/kubepods"},
		{"hybrid", v1 + "38 31 0:41 / ROOT/sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate",
			[]string{"sys/fs/cgroup/memory/kubepods", "sys/fs/cgroup/unified/kubepods.slice"},
			"sys/fs/cgroup/unified/kubepods.slice"},
		{"kind, systemd", "30 24 0:27 / ROOT/sys/fs/cgroup rw - cgroup2 cgroup rw",
			[]string{"sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"},
			"sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice"},
		{"kind, cgroupfs, from outside", "30 24 0:27 / ROOT/sys/fs/cgroup rw - cgroup2 cgroup rw",
			[]string{"sys/fs/cgroup/docker/0123/kubelet/kubepods/besteffort"},
			"sys/fs/cgroup/docker/0123/kubelet/kubepods"},
		{"own mount, then the host's", "30 24 0:27 / ROOT/own rw - cgroup2 cgroup rw\n31 24 0:27 /../.. ROOT/host\\040cgroup rw master:1 - cgroup2 cgroup rw",
			[]string{"own/init", "host cgroup/kubepods.slice"},
			"host cgroup/kubepods.slice"},
		{"only v1", v1, []string{"sys/fs/cgroup/memory/kubepods"}, "mounts cgroup v1 only"},
		{"pods in v1", v1 + "38 31 0:41 / ROOT/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
			[]string{"sys/fs/cgroup/memory/kubepods", "sys/fs/cgroup/unified/init.scope"}, "pods are in cgroup v1 only"},
		{"two kind nodes on one host", "30 24 0:27 / ROOT/cg rw - cgroup2 cgroup rw",
			[]string{"cg/docker/0/kubelet/kubepods", "cg/docker/1/kubelet/kubepods"}, "cg/docker/0/kubelet/kubepods and "},
		{"too deep", "30 24 0:27 / ROOT/cg rw - cgroup2 cgroup rw",
			[]string{"cg/1/2/3/4/kubepods"}, "none below"},
		{"a removed mount", "30 24 0:27 / ROOT/gone rw - cgroup2 cgroup rw", nil, "none below"},
		{"nonsense", "30 24 - cgroup2\n- \n - \n\nx y z a b c - cgroup2", nil, "none below"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range tc.dirs {
				check(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
			}
			info := filepath.Join(root, "mountinfo")
			check(t, os.WriteFile(info, []byte(strings.ReplaceAll(tc.mount, "ROOT", root)+"\n"), 0o644))
			got, err := FindKubepods(info)
			if err != nil {
				isKnown := errors.Is(err, ErrNoKubepods) || errors.Is(err, ErrCgroupV1) || errors.Is(err, ErrPodsInV1)
				if !isKnown || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want one with %q", err, tc.want)
				}
				return
			}
			if got != filepath.Join(root, tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestFindKubepodsWithoutMountinfo(t *testing.T) {
	if _, err := FindKubepods(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// FindKubepods finds a kubepods directory on this machine.
func TestFindKubepodsHere(t *testing.T) {
	lab.NeedRoot(t)
	parent := lab.MakeCgroup(t, filepath.Join(lab.CgroupMount(t), fmt.Sprintf("nodens-find-%d", os.Getpid())))
	want := lab.MakeCgroup(t, filepath.Join(parent, "kubepods.slice"))
	got, err := FindKubepods("/proc/self/mountinfo")
	if err == nil && got != want {
		t.Skip("this machine has pods of its own: " + got)
	}
	if errors.Is(err, ErrNoKubepods) && strings.Contains(err.Error(), want) {
		t.Skipf("this machine has pods of its own: %v", err)
	}
	check(t, err)
}

func FuzzParseMount(f *testing.F) {
	f.Add("30 24 0:27 / /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw,nsdelegate")
	f.Add("31 24 0:28 /a\\040b /c\\134040d rw - cgroup cgroup rw,memory")
	f.Add(" - ")
	f.Add("1 2 3 4 5 -  x")
	f.Fuzz(func(t *testing.T, line string) {
		mount, fsType, ok := parseMount(line)
		if ok && (mount == "" || fsType == "") {
			t.Errorf("%q: mount %q, type %q", line, mount, fsType)
		}
		if !ok && (mount != "" || fsType != "") {
			t.Errorf("%q: refused, but mount %q, type %q", line, mount, fsType)
		}
	})
}
