package test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestResolvConf changes the resolv.conf of a forward while nodens runs: nodens
// uses the new upstream, and ignores an empty file.
func TestResolvConf(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	startNamed(t, c, "192.0.2.1")
	startNamed(t, c, "192.0.2.2")
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "resolv.conf"), "search example.org\nnameserver 10.1.1.2\n")
	d := c.start(t, `. {
		errors
		bind `+localIP+`
		forward . `+file+`
	}`)
	expect := func(when, want string) {
		t.Helper()
		r := c.pod.Ask(t, "udp", localAddr, lab.Query("www.example.org.", dns.TypeA))
		if got := lab.Data(r, dns.TypeA); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %s %v, want %s", when, dns.RcodeToString[r.Rcode], got, want)
		}
	}
	expect("at first", "192.0.2.1")

	mark := d.Err.Mark()
	lab.ReplaceFile(t, file, "# by DHCP\nnameserver 10.1.2.2\n")
	d.Err.WaitFor(t, mark, `upstreams changed`)
	expect("after a rename into place", "192.0.2.2")

	mark = d.Err.Mark()
	lab.WriteFile(t, file, "")
	d.Err.WaitFor(t, mark, `the upstreams stay as they were`)
	expect("emptied", "192.0.2.2")

	mark = d.Err.Mark()
	lab.WriteFile(t, file, "nameserver 10.1.1.2\n")
	d.Err.WaitFor(t, mark, `upstreams changed`)
	expect("after it is written again", "192.0.2.1")
}
