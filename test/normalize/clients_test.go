package normalize

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// client is a stub resolver.
type client struct {
	name string
	args []string // of the program, followed by the names
	env  []string
	isGo bool // see lab.GoLookup

	noSearch bool     // ignores the search list
	types    []uint16 // query types
}

var bothTypes = []uint16{dns.TypeA, dns.TypeAAAA}

// newClients are the stubs that are installed.
func newClients(t *testing.T) []client {
	t.Helper()
	lab.NeedTools(t, "gcc", "musl-gcc")
	list := []client{
		{name: "musl", args: []string{buildMusl.Path(t)}, types: bothTypes},
		{name: "glibc", args: []string{buildGlibc.Path(t)}, types: bothTypes},
		{name: "go", isGo: true, types: bothTypes},
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Log("node is not installed: tested without its resolvers")
		return list
	}
	script, err := filepath.Abs("testdata/lookups.js")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"UV_THREADPOOL_SIZE=512"} // at most half of the threads do lookups
	return append(list,
		client{name: "node-lookup", args: []string{node, script, "lookup"}, env: env, types: bothTypes},
		client{name: "node-resolve4", args: []string{node, script, "resolve4"}, noSearch: true, types: bothTypes[:1]},
		client{name: "node-resolve6", args: []string{node, script, "resolve6"}, noSearch: true, types: bothTypes[1:]},
	)
}

// pod is a namespace with its own resolv.conf.
type pod struct {
	netns *lab.Netns
	binds map[string]string
}

func newPod(t *testing.T, n *lab.Netns, resolvConf string) pod {
	t.Helper()
	return pod{n, lab.Etc(t, resolvConf)}
}

// lookup lets c look up all the names at once. It may be called concurrently.
func (p pod) lookup(t *testing.T, c client, names ...string) map[string]lab.Lookup {
	t.Helper()
	cmd := lab.Command{Netns: p.netns, Args: slices.Concat(c.args, names), Env: c.env, Binds: p.binds}
	if c.isGo {
		cmd.Args, cmd.Env = lab.GoLookup(t, names...)
	}
	out, errs, status := cmd.Output(t)
	if status != 0 {
		t.Errorf("%s: status %d\n%s", c.name, status, errs)
	}
	results := make(map[string]lab.Lookup)
	for line := range strings.Lines(out) {
		name, r, err := lab.ParseLookup(line)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		results[name] = r
	}
	for _, name := range names {
		if _, ok := results[name]; !ok {
			t.Errorf("%s printed no line for %s:\n%s", c.name, name, out)
		}
	}
	return results
}
