package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Etc returns the Binds that give a stub resolver an /etc of its own, with only
// resolv.conf, hosts and nsswitch.conf.
func Etc(t testing.TB, resolvConf string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	for file, text := range map[string]string{
		"resolv.conf": resolvConf, "hosts": "127.0.0.1 localhost\n", "nsswitch.conf": "hosts: files dns\n",
	} {
		WriteFile(t, filepath.Join(dir, file), text)
	}
	return map[string]string{"/etc": dir}
}

// Lookup is the result of one lookup by a stub resolver.
type Lookup struct {
	Data []string // addresses, names of an address, or SRV records; sorted
	Err  string   // the stub's error; empty if it found data
	Took time.Duration
}

func (l Lookup) String() string {
	s := l.Err
	if s == "" {
		s = strings.Join(l.Data, " ")
	}
	return fmt.Sprintf("%s after %v", s, l.Took)
}

// ParseLookup reads a line that a stub prints: the name, the milliseconds, and
// the data or an error. testdata/lookup.c and GoLookup are such stubs.
func ParseLookup(line string) (name string, l Lookup, err error) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return "", l, fmt.Errorf("stub printed %q", line)
	}
	ms, err := strconv.Atoi(f[1])
	if err != nil {
		return "", l, fmt.Errorf("stub printed %q", line)
	}
	l.Took = time.Duration(ms) * time.Millisecond
	if !strings.ContainsAny(f[2], ".:") {
		l.Err = f[2]
		return f[0], l, nil
	}
	l.Data = f[2:]
	slices.Sort(l.Data)
	return f[0], l, nil
}

const envLookup = "NODENS_LAB_LOOKUP"

// GoLookup is a stub that uses Go's resolver: a command line and an environment
// that make a test binary whose TestMain calls Main look up the names.
func GoLookup(t testing.TB, names ...string) (args, env []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self}, []string{envLookup + "=" + strings.Join(names, " ")}
}

// goLookups looks up all the names at once, as testdata/lookup.c does. The first may
// be an option.
func goLookups(names []string) {
	resolver := &net.Resolver{PreferGo: true}
	lookup := resolver.LookupHost
	switch names[0] {
	case "-x":
		lookup, names = resolver.LookupAddr, names[1:]
	case "-s":
		lookup, names = goServices, names[1:]
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, name := range names {
		wg.Go(func() {
			start := time.Now()
			data, err := lookup(context.Background(), name)
			took := time.Since(start).Milliseconds()
			if err != nil {
				data = []string{goError(err)}
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(name, took, strings.Join(data, " "))
		})
	}
	wg.Wait()
}

func goServices(ctx context.Context, name string) (data []string, err error) {
	_, all, err := (&net.Resolver{PreferGo: true}).LookupSRV(ctx, "", "", name)
	for _, s := range all {
		data = append(data, fmt.Sprintf("%d,%d,%d,%s", s.Priority, s.Weight, s.Port, s.Target))
	}
	return data, err
}

func goError(err error) string {
	var e *net.DNSError
	switch {
	case !errors.As(err, &e):
		return "error"
	case e.IsNotFound:
		return "not_found"
	case e.IsTimeout:
		return "timeout"
	}
	return "server_failure"
}
