package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
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
		"-max-misses 100000":               "-max-misses 100000 needs 781 MiB (8 KiB each); the memory limit 128 MiB leaves 39 MiB after the cache's 64 MiB, 24 MiB for the process and 1 MiB for TCP connections",
		"-max-misses 4000 -cache-size 96M": "-max-misses 4000 needs 31 MiB (8 KiB each); the memory limit 128 MiB leaves 7 MiB after the cache's 96 MiB",
		"-cache-size 128M":                 "-cache-size 128 MiB does not fit; the memory limit 128 MiB leaves 102 MiB",
		"-max-tcp-connections 2000":        "-max-tcp-connections 2000 needs 62 MiB (32 KiB each); the memory limit 128 MiB leaves",
		"-max-misses 9 -max-misses-per-client 10": "-max-misses-per-client 10 is more than the limit for all clients, which is 9",
	} {
		e := env{args: append([]string{"check", "-basecorefile=", "-conf", file}, strings.Fields(args)...), stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }, root: limitedRoot}
		err := run(t.Context(), e)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v\nwant %s", args, err, want)
		}
	}
}

// status prints the limits of the running daemon.
func TestPrintLimits(t *testing.T) {
	const metrics = `# HELP nodens_limit x
nodens_limit{resource="misses"} 3413
nodens_limit{resource="misses_per_client"} 426
nodens_limit{resource="tcp_connections"} 160
nodens_limit{resource="tcp_connections_per_client"} 80
nodens_limit{resource="upstream_sockets"} 2048
nodens_limit{resource="upstream_tcp_connections"} 106
nodens_limit_bytes{resource="memory"} 1.34217728e+08
nodens_limit_bytes{resource="heap"} 5.0247680e+07
nodens_limit_bytes{resource="cache"} 6.7108864e+07
nodens_limit_clamped{limit="cache_size"} 0
nodens_limit_clamped{limit="max_misses"} 1
`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, metrics) }))
	defer s.Close()
	var out bytes.Buffer
	printLimits(t.Context(), &out, strings.TrimPrefix(s.URL, "http://"))
	want := `limits	memory 128 MiB, heap 47 MiB, cache 64 MiB
limits	3413 misses, 426 of one client
limits	160 TCP connections on each address, 80 of one client
limits	2048 UDP sockets and 106 TCP connections to upstreams
note	-max-misses does not fit and is lowered; run nodens check with the daemon's flags
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	printLimits(t.Context(), &out, "")
	if want := "limits\tunknown: the Corefile has no prometheus directive\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
