package normalize

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// client is a stub resolver that programs in a pod have built in.
type client struct {
	name string
	args []string // of the program; the names follow
	env  []string
	isGo bool // takes the names by lookupsEnv

	noSearch bool     // asks for the name as it stands, whatever resolv.conf says
	types    []uint16 // that it asks for
}

var bothTypes = []uint16{dns.TypeA, dns.TypeAAAA}

// newClients are the stubs that this machine has.
func newClients(t *testing.T) []client {
	t.Helper()
	lab.NeedTools(t, "gcc", "musl-gcc")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	list := []client{
		{name: "musl", args: []string{buildMusl.Path(t)}, types: bothTypes},
		{name: "glibc", args: []string{buildGlibc.Path(t)}, types: bothTypes},
		{name: "go", args: []string{self}, isGo: true, types: bothTypes},
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Log("node is not installed: its resolvers are left out")
		return list
	}
	script, err := filepath.Abs("testdata/lookups.js")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"UV_THREADPOOL_SIZE=512"} // at most half of them look up names
	return append(list,
		client{name: "node-lookup", args: []string{node, script, "lookup"}, env: env, types: bothTypes},
		client{name: "node-resolve4", args: []string{node, script, "resolve4"}, noSearch: true, types: bothTypes[:1]},
		client{name: "node-resolve6", args: []string{node, script, "resolve6"}, noSearch: true, types: bothTypes[1:]},
	)
}

// result is what a client made of a name.
type result struct {
	addrs []string // sorted
	err   string   // in the client's words; empty: found
	took  time.Duration
}

func (r result) String() string {
	s := r.err
	if s == "" {
		s = strings.Join(r.addrs, " ")
	}
	return fmt.Sprintf("%s after %v", s, r.took)
}

// pod is where clients run: with a resolv.conf of its own.
type pod struct {
	netns *lab.Netns
	binds map[string]string
}

func newPod(t *testing.T, n *lab.Netns, resolvConf string) pod {
	t.Helper()
	dir := t.TempDir()
	p := pod{n, map[string]string{
		"/etc/resolv.conf": lab.WriteFile(t, filepath.Join(dir, "resolv.conf"), resolvConf),
		"/etc/hosts":       lab.WriteFile(t, filepath.Join(dir, "hosts"), "127.0.0.1 localhost\n"),
	}}
	const nsswitch = "/etc/nsswitch.conf"
	if _, err := os.Stat(nsswitch); err == nil {
		p.binds[nsswitch] = lab.WriteFile(t, filepath.Join(dir, "nsswitch.conf"), "hosts: files dns\n")
	}
	return p
}

// lookup has c look up all the names at once. It may be called concurrently.
func (p pod) lookup(t *testing.T, c client, names ...string) map[string]result {
	t.Helper()
	cmd := lab.Command{Netns: p.netns, Args: slices.Concat(c.args, names), Env: c.env, Binds: p.binds}
	if c.isGo {
		cmd.Args, cmd.Env = c.args, []string{lookupsEnv + "=" + strings.Join(names, " ")}
	}
	out, errs, status := cmd.Output(t)
	if status != 0 {
		t.Errorf("%s: status %d\n%s", c.name, status, errs)
	}
	results := make(map[string]result)
	for line := range strings.Lines(out) {
		name, r, err := parseResult(line)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		results[name] = r
	}
	for _, name := range names {
		if _, ok := results[name]; !ok {
			t.Errorf("%s says nothing of %s:\n%s", c.name, name, out)
		}
	}
	return results
}

// parseResult reads a line of the programs in testdata and of goLookups.
func parseResult(line string) (name string, r result, err error) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return "", r, fmt.Errorf("client printed %q", line)
	}
	ms, err := strconv.Atoi(f[1])
	if err != nil {
		return "", r, fmt.Errorf("client printed %q", line)
	}
	r.took = time.Duration(ms) * time.Millisecond
	if net.ParseIP(f[2]) == nil {
		r.err = f[2]
		return f[0], r, nil
	}
	r.addrs = f[2:]
	slices.Sort(r.addrs)
	return f[0], r, nil
}

// goLookups looks up all the names at once, as the programs in testdata do.
func goLookups(names []string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, name := range names {
		wg.Go(func() {
			began := time.Now()
			r := net.Resolver{PreferGo: true}
			addrs, err := r.LookupHost(context.Background(), name)
			took := time.Since(began).Milliseconds()
			if err != nil {
				addrs = []string{goError(err)}
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(name, took, strings.Join(addrs, " "))
		})
	}
	wg.Wait()
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
