package daemon

import (
	"testing"
	"testing/fstest"
)

func TestMemoryLimit(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	const v2mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		name    string
		fs      fstest.MapFS
		want    int64
		limited bool
	}{
		{"no files", fstest.MapFS{}, 0, false},
		{"v2, own limit", fstest.MapFS{
			"proc/self/cgroup":                            file("0::/kubepods/pod1/c\n"),
			"proc/self/mountinfo":                         file(v2mount),
			"sys/fs/cgroup/kubepods/pod1/c/memory.max":    file("178257920\n"),
			"sys/fs/cgroup/kubepods/pod1/memory.max":      file("max\n"),
			"sys/fs/cgroup/kubepods/memory.max":           file("max\n"),
			"sys/fs/cgroup/memory.limit_in_bytes":         file("1\n"), // v1's file
			"sys/fs/cgroup/kubepods/pod1/c/memory.events": file("low 0\n"),
		}, 178257920, true},
		{"v2, lower limit of the pod", fstest.MapFS{
			"proc/self/cgroup":                         file("0::/kubepods/pod1/c\n"),
			"proc/self/mountinfo":                      file(v2mount),
			"sys/fs/cgroup/kubepods/pod1/c/memory.max": file("200\n"),
			"sys/fs/cgroup/kubepods/pod1/memory.max":   file("100\n"),
		}, 100, true},
		{"v2, no limit", fstest.MapFS{
			"proc/self/cgroup":           file("0::/a\n"),
			"proc/self/mountinfo":        file(v2mount),
			"sys/fs/cgroup/a/memory.max": file("max\n"),
		}, 0, false},
		{"v2, cgroup namespace", fstest.MapFS{
			"proc/self/cgroup":         file("0::/\n"),
			"proc/self/mountinfo":      file(v2mount),
			"sys/fs/cgroup/memory.max": file("300\n"),
		}, 300, true},
		{"v1 beside v2, mounted from inside", fstest.MapFS{
			"proc/self/cgroup":                           file("9:memory:/docker/abc\n0::/\n"),
			"proc/self/mountinfo":                        file("35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("400\n"),
		}, 400, true},
		{"v1, no limit", fstest.MapFS{
			"proc/self/cgroup":                           file("9:memory:/\n"),
			"proc/self/mountinfo":                        file("35 31 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, group, limited := memoryLimit(c.fs)
			if again, ok := group.limit(c.fs); limited && (!ok || again != got) {
				t.Errorf("the limit of %+v is %d", group, again)
			}
			if limited != c.limited || limited && got != c.want {
				t.Errorf("memoryLimit = %d, %t, want %d, %t", got, limited, c.want, c.limited)
			}
		})
	}
}
