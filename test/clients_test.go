package test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// bigSize is the number of addresses of big.lab.example. They need more than 1232
// bytes, so nodens must repeat its query over TCP.
const bigSize = 100

// TestRealClients resolves one zone through nodens with dig and the resolvers of
// glibc, musl and Go. The upstream is dnsmasq, then unbound.
func TestRealClients(t *testing.T) {
	t.Parallel()
	for _, up := range []struct {
		name  string
		start func(t *testing.T, n *lab.Netns, ip string)
	}{
		{"dnsmasq", startDnsmasqZone},
		{"unbound", startUnboundZone},
	} {
		t.Run(up.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			n, ip := c.addUpstream(t)
			up.start(t, n, ip)
			c.start(t, `. {
				errors
				cache 30
				bind `+localIP+`
				forward . `+ip+`
			}`)
			t.Run("dig", func(t *testing.T) { testDig(t, c) })
			t.Run("large", func(t *testing.T) { testLargeAnswer(t, c) })
			t.Run("stubs", func(t *testing.T) { testStubs(t, c) })
		})
	}
}

func startDnsmasqZone(t *testing.T, n *lab.Netns, ip string) {
	t.Helper()
	var hosts strings.Builder
	for i := range bigSize {
		fmt.Fprintf(&hosts, "10.9.0.%d big.lab.example\n", i+1)
	}
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "hosts"), hosts.String())
	lab.StartDnsmasq(t, n, ip, `local-ttl=60
local=/lab.example/
host-record=a.lab.example,192.0.2.1
host-record=aaaa.lab.example,2001:db8::1
host-record=dual.lab.example,192.0.2.2,2001:db8::2
cname=alias.lab.example,dual.lab.example
srv-host=_dns._udp.lab.example,a.lab.example,53
txt-record=txt.lab.example,hello world
addn-hosts=`+file+"\n")
}

func startUnboundZone(t *testing.T, n *lab.Netns, ip string) {
	t.Helper()
	var zone strings.Builder
	zone.WriteString(`$ORIGIN lab.example.
$TTL 60
@ SOA ns hostmaster 1 7200 1800 86400 30
@ NS ns
ns A 192.0.2.53
a A 192.0.2.1
aaaa AAAA 2001:db8::1
dual A 192.0.2.2
dual AAAA 2001:db8::2
alias CNAME dual
_dns._udp SRV 0 0 53 a
`)
	for i := range bigSize {
		fmt.Fprintf(&zone, "big A 10.9.0.%d\n", i+1)
	}
	file := lab.WriteFile(t, filepath.Join(t.TempDir(), "zone"), zone.String())
	lab.StartUnbound(t, n, ip, `
	local-data: 'txt.lab.example. 60 IN TXT "hello world"'
	local-data-ptr: "192.0.2.1 60 a.lab.example"
`, `
auth-zone:
	name: "lab.example."
	zonefile: "`+file+`"
	for-downstream: no
	for-upstream: yes
	fallback-enabled: no
`)
}

// testDig sends each query twice: a miss and a hit must give the same reply.
func testDig(t *testing.T, c *cluster) {
	for _, q := range []struct {
		args   string
		status string
		answer []string
	}{
		{"a.lab.example A", "NOERROR", []string{"A 192.0.2.1"}},
		{"a.lab.example AAAA", "NOERROR", nil},
		{"aaaa.lab.example AAAA", "NOERROR", []string{"AAAA 2001:db8::1"}},
		{"dual.lab.example A", "NOERROR", []string{"A 192.0.2.2"}},
		{"dual.lab.example AAAA", "NOERROR", []string{"AAAA 2001:db8::2"}},
		{"alias.lab.example A", "NOERROR", []string{"A 192.0.2.2", "CNAME dual.lab.example."}},
		{"alias.lab.example AAAA", "NOERROR", []string{"AAAA 2001:db8::2", "CNAME dual.lab.example."}},
		{"alias.lab.example CNAME", "NOERROR", []string{"CNAME dual.lab.example."}},
		{"none.lab.example A", "NXDOMAIN", nil},
		{"none.lab.example AAAA", "NXDOMAIN", nil},
		{"-x 192.0.2.1", "NOERROR", []string{"PTR a.lab.example."}},
		{"_dns._udp.lab.example SRV", "NOERROR", []string{"SRV 0 0 53 a.lab.example."}},
		{"txt.lab.example TXT", "NOERROR", []string{`TXT "hello world"`}},
		{"version.bind CH TXT", "REFUSED", nil},
	} {
		for _, opts := range []string{"", "+tcp", "+dnssec", "+noedns", "+bufsize=512", "+cdflag"} {
			args := strings.Fields(q.args + " " + opts)
			for range 2 {
				d := dig(t, c.pod, localIP, args...)
				if d.Status != q.status || !slices.Equal(d.Answer, q.answer) {
					t.Errorf("dig %v: %s %q, want %s %q", args, d.Status, d.Answer, q.status, q.answer)
				}
				if !slices.Contains(strings.Fields(d.Flags), "ra") {
					t.Errorf("dig %v: flags %q without ra", args, d.Flags)
				}
				edns := strings.Contains(d.Text, "; EDNS: version: 0")
				if want := opts != "+noedns"; edns != want {
					t.Errorf("dig %v: OPT in the reply: %t, want %t", args, edns, want)
				}
				do := strings.Contains(d.Text, "flags: do;")
				if want := opts == "+dnssec"; do != want {
					t.Errorf("dig %v: DO in the reply: %t, want %t", args, do, want)
				}
			}
		}
	}
}

// testLargeAnswer expects TC over UDP and the full answer over TCP, for misses
// and hits.
func testLargeAnswer(t *testing.T, c *cluster) {
	for _, opts := range []string{"+noedns", "+bufsize=512", "+bufsize=1232", "+bufsize=4096"} {
		d := dig(t, c.pod, localIP, "big.lab.example", "A", opts, "+ignore")
		if !slices.Contains(strings.Fields(d.Flags), "tc") {
			t.Errorf("%s: flags %q without tc", opts, d.Flags)
		}
		if n := len(d.Answer); n == 0 || n >= bigSize {
			t.Errorf("%s: the truncated reply has %d records; want as many as fit", opts, n)
		}
		d = dig(t, c.pod, localIP, "big.lab.example", "A", opts)
		if !strings.Contains(d.Text, "retrying in TCP mode") || len(d.Answer) != bigSize {
			t.Errorf("%s: %d of %d records after the retry over TCP:\n%s", opts, len(d.Answer), bigSize, d.Text)
		}
	}
}

// testStubs looks up names as programs in a pod do, with their own resolv.conf.
func testStubs(t *testing.T, c *cluster) {
	lab.NeedTools(t, "gcc", "musl-gcc")
	stubs := newStubs(t, c)
	for _, q := range []struct {
		args string // arguments of lookup
		want []string
	}{
		{args: "a.lab.example", want: []string{"192.0.2.1"}},
		{args: "aaaa.lab.example", want: []string{"2001:db8::1"}},
		{args: "dual.lab.example", want: []string{"192.0.2.2", "2001:db8::2"}},
		{args: "-4 dual.lab.example", want: []string{"192.0.2.2"}},
		{args: "-6 dual.lab.example", want: []string{"2001:db8::2"}},
		{args: "alias.lab.example", want: []string{"192.0.2.2", "2001:db8::2"}},
		{args: "dual", want: []string{"192.0.2.2", "2001:db8::2"}}, // through the search list
		{args: "none.lab.example"},
		{args: "-6 a.lab.example"},
		{args: "-x 192.0.2.1", want: []string{"a.lab.example"}},
		{args: "-4 big.lab.example", want: bigAddrs()},
	} {
		t.Run(q.args, func(t *testing.T) {
			stubs.check(t, stubs.glibc, q.args, q.want)
			if q.args == "-4 big.lab.example" {
				return // musl reads at most 48 addresses
			}
			stubs.check(t, stubs.musl, q.args, q.want)
			if !strings.HasPrefix(q.args, "-") {
				stubs.checkGo(t, q.args, q.want)
			}
		})
	}
	t.Run("big by musl", func(t *testing.T) {
		got := stubs.run(t, []string{stubs.musl, "-4", "big.lab.example"}, nil)
		// musl 1.2.5 retries over TCP. Older versions use the truncated answer.
		if n := len(got.Data); n < 20 {
			t.Errorf("%d addresses, %v", n, got)
		}
	})
}

func bigAddrs() []string {
	var list []string
	for i := range bigSize {
		list = append(list, fmt.Sprintf("10.9.0.%d", i+1))
	}
	slices.Sort(list)
	return list
}

// stubs are the stub resolvers of a pod's programs.
type stubs struct {
	c           *cluster
	glibc, musl string // paths of the lookup program
	binds       map[string]string
}

func newStubs(t *testing.T, c *cluster) *stubs {
	t.Helper()
	return &stubs{
		c: c, glibc: buildGlibc.Path(t), musl: buildMusl.Path(t),
		binds: lab.Etc(t, "nameserver "+localIP+"\nsearch lab.example\n"),
	}
}

// run looks up one name.
func (s *stubs) run(t *testing.T, args, env []string) lab.Lookup {
	t.Helper()
	out, errs, status := lab.Command{Netns: s.c.pod, Args: args, Env: env, Binds: s.binds}.Output(t)
	_, l, err := lab.ParseLookup(out)
	if status != 0 || err != nil {
		t.Errorf("%v: status %d, %v\n%s", args, status, err, errs)
	}
	return l
}

// check does one lookup. want is nil if the name has no such address. If the name
// has addresses of the other family, some library versions report EAI_NODATA.
// None may report EAI_AGAIN.
func (s *stubs) check(t *testing.T, program, args string, want []string) {
	t.Helper()
	got := s.run(t, append([]string{program}, strings.Fields(args)...), nil)
	ok := slices.Equal(got.Data, want) && got.Err == ""
	if want == nil {
		ok = got.Err == "EAI_NONAME" || got.Err == "EAI_NODATA"
	}
	if !ok {
		t.Errorf("%s: %v, want %v", program, got, want)
	}
}

// checkGo does the same with Go's resolver.
func (s *stubs) checkGo(t *testing.T, name string, want []string) {
	t.Helper()
	args, env := lab.GoLookup(t, name)
	got := s.run(t, args, env)
	ok := slices.Equal(got.Data, want) && got.Err == ""
	if want == nil {
		ok = got.Err == "not_found"
	}
	if !ok {
		t.Errorf("Go: %v, want %v", got, want)
	}
}
