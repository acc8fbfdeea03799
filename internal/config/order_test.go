package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// coreDNSOrder is the order in which the plugins of CoreDNS 1.14.7 act, as its
// plugin.cfg has it.
func coreDNSOrder() []string {
	return strings.Fields(`root metadata geoip cancel proxyproto quic grpc_server https https3 timeouts multisocket
		reload nsid bufsize bind debug trace ready health pprof shed prometheus errors log dnstap local dns64 any
		chaos loadbalance tsig rewrite autopath acl cache header dnssec tls minimal template transfer hosts route53
		azure clouddns k8s_external kubernetes file auto secondary etcd loop forward grpc erratic whoami on sign
		view nomad`)
}

// TestOrder wants the directives in CoreDNS's order, and a word on every
// directive that CoreDNS has and we have not.
func TestOrder(t *testing.T) {
	last := -1
	for _, d := range Directives() {
		at := slices.Index(coreDNSOrder(), d.Name)
		switch {
		case d.own != (at < 0):
			t.Errorf("%s: of our own %t, at %d in CoreDNS's order", d.Name, d.own, at)
		case !d.own && at < last:
			t.Errorf("%s stands behind one that acts after it", d.Name)
		case !d.own:
			last = at
		}
	}
	for _, name := range coreDNSOrder() {
		_, known := directive(name)
		if _, told := refused()[name]; known == told {
			t.Errorf("%s: known %t, refused %t", name, known, told)
		}
	}
}

// TestOrderTable holds the table in docs/directives.md to be that of the
// directives.
func TestOrderTable(t *testing.T) {
	const path, begin, end = "../../docs/directives.md", "<!-- begin of the table -->\n", "<!-- end of the table -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	table, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s…%s", path, begin, end)
	}
	want := orderTable()
	if *update {
		if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("the table in %s is not what the directives are; go test ./internal/config -run TestOrderTable -update writes it anew", path)
	}
}

// orderTable is a line for each directive, in the order in which they act.
func orderTable() string {
	var b strings.Builder
	b.WriteString("| | directive | does | other than in CoreDNS |\n|---|---|---|---|\n")
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	for i, d := range Directives() {
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s |\n", i+1, d.Name, cell(d.Summary), cell(d.Differs))
	}
	return b.String()
}
