package test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// lossyLookups is how many lookups a client sends at once.
const lossyLookups = 12

// lossyTimeout is the time in seconds after which a client gives up, as by default.
const lossyTimeout = "5"

// lossyPath is a path to the upstream that loses some packets without a trace. The
// answers need more than 512 bytes.
type lossyPath struct {
	name    string
	replies bool   // the packets are lost on the way back
	match   string // of nftables
	learns  bool   // nodens learns what to avoid
}

// The header of a DNS message over UDP begins 8 bytes after that of UDP. Its last field
// counts the additional records: with one, the query has an OPT record.
var lossyPaths = []lossyPath{
	{name: "replies above 512 bytes", replies: true, match: "udp sport 53 udp length > 520"},
	{name: "queries with OPT", match: "udp dport 53 @th,144,16 != 0", learns: true},
}

// lossyClients look names up, one after the other or all at once. They return the names
// that got all addresses.
var lossyClients = []struct {
	name   string
	lookup func(t *testing.T, c *cluster, names []string) (answered []string)
}{
	{"dig", func(t *testing.T, c *cluster, names []string) []string { return digAll(t, c, names) }},
	{"dig over TCP", func(t *testing.T, c *cluster, names []string) []string { return digAll(t, c, names, "+tcp") }},
	{"glibc", func(t *testing.T, c *cluster, names []string) []string { return stubAll(t, c, names, buildGlibc, "") }},
	{"glibc over TCP", func(t *testing.T, c *cluster, names []string) []string {
		return stubAll(t, c, names, buildGlibc, " use-vc")
	}},
	{"musl", func(t *testing.T, c *cluster, names []string) []string { return stubAll(t, c, names, buildMusl, "") }},
	{"Go", func(t *testing.T, c *cluster, names []string) []string { return stubAll(t, c, names, nil, "") }},
}

// TestLossyPaths: the path to the upstream loses large replies or queries with an OPT
// record. Every lookup of the first name is answered before the client gives up, and so
// are lookups of other names. Afterwards nodens sends nothing that the path loses.
func TestLossyPaths(t *testing.T) {
	t.Parallel()
	lab.NeedTools(t, "nft", "gcc", "musl-gcc")
	for _, p := range lossyPaths {
		for _, client := range lossyClients {
			t.Run(p.name+"/"+client.name, func(t *testing.T) {
				c := newCluster(t)
				lost := p.start(t, c)
				lookup := func(what string, names []string) {
					t.Helper()
					if got := client.lookup(t, c, names); !slices.Equal(got, names) {
						t.Errorf("%s: %d of %d lookups were answered: %v", what, len(got), len(names), got)
					}
				}
				lookup("first name", slices.Repeat([]string{lossyName(0)}, lossyLookups))
				before := lost()
				if before == 0 {
					t.Fatal("the path lost nothing: this test proves nothing")
				}
				lookup("the same name", slices.Repeat([]string{lossyName(0)}, lossyLookups))
				if n := lost() - before; n > 0 && !p.learns {
					t.Errorf("%d packets were lost for a cached name", n)
				}
				lookup("other names", lossyNames(1))
				if !p.learns {
					return
				}
				p.waitLearned(t, c, lost)
				before = lost()
				lookup("names after that", lossyNames(1+lossyLookups))
				if n := lost() - before; n >= lossyLookups {
					t.Errorf("%d packets were lost for %d names", n, lossyLookups)
				}
			})
		}
	}
}

// start runs CoreDNS behind the path, and nodens. lost returns the number of packets that
// the path has lost.
func (p lossyPath) start(t *testing.T, c *cluster) (lost func() int) {
	t.Helper()
	n, ip := c.addUpstream(t)
	var hosts strings.Builder
	for i := range 1 + 2*lossyLookups {
		for k := range lossyAddresses {
			fmt.Fprintf(&hosts, "10.9.%d.%d %s\n", i, k+1, lossyName(i))
		}
	}
	conf := lab.WriteFile(t, filepath.Join(t.TempDir(), "Corefile"), ". {\n bind "+ip+"\n hosts {\n"+hosts.String()+
		" fallthrough\n }\n template IN A new.example {\n answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n }\n}\n")
	lab.Command{Netns: n, Args: []string{lab.CoreDNS(t), "-conf", conf}}.Start(t).Out.WaitFor(t, 0, `CoreDNS-`)
	if p.replies {
		n = c.node
	}
	n.Nft(t, "add table ip path")
	n.Nft(t, "add chain ip path in { type filter hook input priority 0; }")
	n.Nft(t, "add rule ip path in "+p.match+" counter drop")
	lab.StartDaemon(t, lab.DaemonOptions{Binary: buildPlain.Path(t), Netns: c.node,
		Corefile: ". {\n errors\n cache 600\n bind " + localIP + "\n forward . " + ip + "\n}\n"})
	packets := regexp.MustCompile(`counter packets (\d+)`)
	return func() int {
		m := packets.FindStringSubmatch(n.Nft(t, "list chain ip path in"))
		if m == nil {
			t.Fatal("no counter")
		}
		k, _ := strconv.Atoi(m[1])
		return k
	}
}

const lossyAddresses = 40 // more than 512 bytes, and less than 1232

func lossyName(i int) string { return fmt.Sprintf("n%d.lab.example", i) }

// lossyNames are as many names as there are lookups at once, from the i-th on.
func lossyNames(i int) (names []string) {
	for k := range lossyLookups {
		names = append(names, lossyName(i+k))
	}
	return names
}

// waitLearned waits until a new name costs no lost packet: the silence that teaches nodens
// takes seconds.
func (p lossyPath) waitLearned(t *testing.T, c *cluster, lost func() int) {
	t.Helper()
	for i, end := 0, time.Now().Add(3*lab.QueryTimeout); ; i++ {
		before := lost()
		c.pod.Ask(t, "udp", localAddr, lab.Query(fmt.Sprintf("n%d.new.example.", i), dns.TypeA))
		if lost() == before {
			return
		}
		if time.Now().After(end) {
			t.Fatal("each new name still loses a packet")
		}
	}
}

// digAll looks the names up one after the other.
func digAll(t *testing.T, c *cluster, names []string, opts ...string) (answered []string) {
	for _, name := range names {
		args := append([]string{"dig", "@" + localIP, "+tries=1", "+time=" + lossyTimeout, "+short", name, "A"}, opts...)
		out, _, _ := lab.Command{Netns: c.pod, Args: args}.Output(t)
		if strings.Count(out, "10.9.") == lossyAddresses {
			answered = append(answered, name)
		}
	}
	return answered
}

// stubAll looks the names up at once, with a program or, without one, with Go's resolver.
// Old versions of musl use the truncated answer.
func stubAll(t *testing.T, c *cluster, names []string, program *lab.Program, option string) (answered []string) {
	resolvConf := "nameserver " + localIP + "\noptions attempts:1 timeout:" + lossyTimeout + option + "\n"
	cmd := lab.Command{Netns: c.pod, Binds: lab.Etc(t, resolvConf)}
	if program == nil {
		cmd.Args, cmd.Env = lab.GoLookup(t, names...)
	} else {
		cmd.Args = append([]string{program.Path(t), "-4"}, names...)
	}
	out, errs, _ := cmd.Output(t)
	got := map[string]int{}
	for line := range strings.Lines(out) {
		name, l, err := lab.ParseLookup(line)
		if err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		if l.Err == "" && (len(l.Data) == lossyAddresses || program == buildMusl && len(l.Data) >= 20) {
			got[name]++
			continue
		}
		t.Logf("%s: %v", name, l)
	}
	for _, name := range names { // in their order
		if got[name] > 0 {
			got[name]--
			answered = append(answered, name)
		}
	}
	return answered
}
