package config

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestZonesOf(t *testing.T) {
	src := Source{Dir: "/etc/coredns", Files: fstest.MapFS{
		"etc/coredns/custom/a.server": {Data: []byte("Acme.Local:53 {\n    forward . 10.0.0.1\n}\n")},
	}}
	got, err := ZonesOf("/etc/coredns/Corefile", `
(snip) {
    errors
}
.:53 {
    import snip
    kubernetes cluster.local in-addr.arpa {
        fallthrough
    }
    no_such_plugin
    forward corp.example 10.1.2.3
    forward . /etc/resolv.conf
}
lab.example, 10.2.0.0/16 {
    forward . 10.1.2.3
}
tls://secret.example {
    forward . 10.1.2.3
}
import custom/*.server
`, src)
	want := []string{".", "corp.example.", "lab.example.", "2.10.in-addr.arpa.", "acme.local."}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v %q, want %q", err, got, want)
	}
	if _, err := ZonesOf("Corefile", "a {", Source{}); err == nil {
		t.Error("no error for a block without end")
	}
}
