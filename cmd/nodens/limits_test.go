package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// limitedRoot is the file system of a process with a memory limit of 128 MiB.
var limitedRoot = fstest.MapFS{
	"proc/self/cgroup":         {Data: []byte("0::/\n")},
	"proc/self/mountinfo":      {Data: []byte("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
	"sys/fs/cgroup/memory.max": {Data: []byte("134217728\n")},
}

// check refuses limits that do not fit, with the arithmetic.
func TestCheckLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Corefile")
	if err := os.WriteFile(file, []byte(". {\n bind 127.0.0.1\n forward . 192.0.2.1\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                                 "",
		"-max-misses 4000":                 "",
		"-max-misses 100000":               "-max-misses 100000 needs 390 MiB (4 KiB each); the memory limit 128 MiB leaves 26 MiB after the cache's 64 MiB, 36 MiB for the process and its buffers and 2 MiB for TCP connections",
		"-max-misses 4000 -cache-size 80M": "-max-misses 4000 needs 15 MiB (4 KiB each); the memory limit 128 MiB leaves 10 MiB after the cache's 80 MiB",
		"-cache-size 128M":                 "-cache-size 128 MiB does not fit; the memory limit 128 MiB leaves 89 MiB",
		"-max-tcp-connections 2000":        "-max-tcp-connections 2000 needs 125 MiB (64 KiB each); the memory limit 128 MiB leaves",
		"-max-misses 9 -max-misses-per-client 10": "-max-misses-per-client 10 is more than the limit for all clients, which is 9",
	} {
		e := env{args: append([]string{"check", "-basecorefile=", "-conf", file}, strings.Fields(args)...), Env: terminal(io.Discard, io.Discard), getenv: func(string) string { return "" }, root: limitedRoot}
		err := run(t.Context(), e)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v\nwant %s", args, err, want)
		}
	}
}
