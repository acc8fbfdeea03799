package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// coreDNSOrder is the order of plugin.cfg in CoreDNS 1.14.7, in which plugins act.
func coreDNSOrder() []string {
	return strings.Fields(`root metadata geoip cancel proxyproto quic grpc_server https https3 timeouts multisocket
		reload nsid bufsize bind debug trace ready health pprof shed prometheus errors log dnstap local dns64 any
		chaos loadbalance tsig rewrite autopath acl cache header dnssec tls minimal template transfer hosts route53
		azure clouddns k8s_external kubernetes file auto secondary etcd loop forward grpc erratic whoami on sign
		view nomad`)
}

// TestOrder checks that the directives are in CoreDNS's order, and that each
// directive of CoreDNS is either known or refused.
func TestOrder(t *testing.T) {
	last := -1
	for _, d := range Directives() {
		at := slices.Index(coreDNSOrder(), d.Name)
		switch {
		case d.own != (at < 0):
			t.Errorf("%s: own is %t, place in CoreDNS's order %d", d.Name, d.own, at)
		case !d.own && at < last:
			t.Errorf("%s comes after a directive that acts later", d.Name)
		case !d.own:
			last = at
		}
	}
	for _, name := range coreDNSOrder() {
		_, known := directive(name)
		if _, refused := refused()[name]; known == refused {
			t.Errorf("%s: known %t, refused %t", name, known, refused)
		}
	}
}

// TestOrderTable checks that the table in docs/directives.md is generated from the
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
		t.Errorf("the table in %s is out of date: run go test ./internal/config -run TestOrderTable -update", path)
	}
}

// orderTable has a line for each directive, in the order in which they act.
func orderTable() string {
	var b strings.Builder
	b.WriteString("| | directive | does | difference from CoreDNS |\n|---|---|---|---|\n")
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	for i, d := range Directives() {
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s |\n", i+1, d.Name, cell(d.Summary), cell(d.Differs))
	}
	return b.String()
}
