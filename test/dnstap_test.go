package test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// dnstapTool is the reader of the dnstap project.
var dnstapTool = lab.GoProgram("dnstap", "github.com/dnstap/golang-dnstap/dnstap")

// tapped is a message in the tool's output.
type tapped struct {
	Identity, Version string
	Message           tappedMessage
}

type tappedMessage struct {
	Type            string
	SocketFamily    string    `json:"socket_family"`
	SocketProtocol  string    `json:"socket_protocol"`
	QueryTime       time.Time `json:"query_time"`
	ResponseTime    time.Time `json:"response_time"`
	QueryAddress    string    `json:"query_address"`
	ResponseAddress string    `json:"response_address"`
	QueryPort       uint32    `json:"query_port"`
	ResponsePort    uint32    `json:"response_port"`
	QueryMessage    string    `json:"query_message"`
	ResponseMessage string    `json:"response_message"`
}

// startReader starts the tool on a socket. It waits until a Unix socket is there, since
// the tool does not report a TCP socket.
func (c *cluster) startReader(t *testing.T, flag, socket string) *lab.Process {
	t.Helper()
	p := lab.Command{Netns: c.node, Args: []string{dnstapTool.Path(t), flag, socket, "-j"}}.Start(t)
	if flag == "-u" {
		p.Err.WaitFor(t, 0, "opened input socket")
	}
	return p
}

// messages waits for n messages of a reader.
func messages(t *testing.T, p *lab.Process, n int) []tapped {
	t.Helper()
	for i := range n {
		p.Out.WaitFor(t, i, "message")
	}
	var all []tapped
	for line := range strings.Lines(p.Out.Text()) {
		var m tapped
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, m)
	}
	return all
}

// key has the fields that nodens and CoreDNS have in common. The tool prints the flags and
// the question of each message.
func (m *tappedMessage) key() string {
	peer := fmt.Sprint(m.ResponseAddress, " ", m.ResponsePort) // the upstream
	if strings.HasPrefix(m.Type, "CLIENT") {
		peer = fmt.Sprint(m.QueryAddress, " ", m.QueryPort > 0)
	}
	wire := m.QueryMessage + m.ResponseMessage
	_, question, _ := strings.Cut(wire, "QUESTION SECTION:\n")
	question, _, _ = strings.Cut(question, "\n")
	_, status, _ := strings.Cut(wire, "status: ")
	status, _, _ = strings.Cut(status, ",")
	return strings.Join([]string{
		m.Type, m.SocketFamily, m.SocketProtocol, peer, fmt.Sprint(m.ResponseTime.IsZero()), strings.ToLower(question), status,
	}, " ")
}

// TestDnstap sends the same queries to nodens and to CoreDNS, and compares the messages
// that a real reader gets.
func TestDnstap(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		r := lab.Reply(q)
		if strings.HasPrefix(q.Question[0].Name, "gone.") {
			r.Rcode = dns.RcodeNameError
		} else if q.Question[0].Qtype == dns.TypeA {
			r = lab.Reply(q, q.Question[0].Name+" 30 IN A 192.0.2.1")
		}
		return r
	})
	dir := t.TempDir()
	corefile := func(socket, bind string) string {
		return `. {
			dnstap unix://` + socket + ` full {
				identity node-1
				version 1.2
			}
			cache 30
			bind ` + bind + `
			forward . ` + ip + ` {
				prefer_udp
			}
		}`
	}
	ours, theirs := filepath.Join(dir, "nodens"), filepath.Join(dir, "coredns")
	reader, control := c.startReader(t, "-u", ours), c.startReader(t, "-u", theirs)
	c.start(t, corefile(ours, localIP))
	core := lab.WriteFile(t, filepath.Join(dir, "Corefile"), corefile(theirs, "10.0.1.1"))
	lab.Command{Netns: c.node, Args: []string{lab.CoreDNS(t), "-conf", core}}.Start(t).Out.WaitFor(t, 0, "CoreDNS-")

	edns := lab.Query("edns.example.", dns.TypeA)
	edns.SetEdns0(1232, true)
	queries := []struct {
		network string
		q       *dns.Msg
	}{
		{"udp", lab.Query("www.example.", dns.TypeA)},
		{"udp", lab.Query("www.example.", dns.TypeA)}, // from the cache
		{"tcp", lab.Query("tcp.example.", dns.TypeA)},
		{"udp", lab.Query("gone.example.", dns.TypeA)},
		{"udp", edns},
	}
	const want = 5*2 + 4*2 // a hit has no FORWARDER messages
	for _, server := range []string{localAddr, "10.0.1.1:53"} {
		for _, q := range queries {
			c.pod.Ask(t, q.network, server, q.q)
		}
	}
	got, expected := messages(t, reader, want), messages(t, control, want)
	keys := func(all []tapped) (list []string) {
		for _, m := range all {
			if m.Identity != "node-1" || m.Version != "1.2" {
				t.Errorf("identity %q, version %q", m.Identity, m.Version)
			}
			list = append(list, m.Message.key())
		}
		slices.Sort(list)
		return list
	}
	if g, e := keys(got), keys(expected); !slices.Equal(g, e) {
		t.Errorf("nodens:\n%s\nCoreDNS:\n%s", strings.Join(g, "\n"), strings.Join(e, "\n"))
	}
	for _, m := range got {
		if m := m.Message; !m.ResponseTime.IsZero() && m.ResponseTime.Before(m.QueryTime) {
			t.Errorf("the reply is older than the query: %+v", m)
		}
	}
}

// TestDnstapReader stops the reader, ends it, and starts it again. Lookups go on, and
// lost messages are counted.
func TestDnstapReader(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	n, ip := c.addUpstream(t)
	lab.StartUpstream(t, n, ip+":53", func(q *dns.Msg) *dns.Msg {
		return lab.Reply(q, q.Question[0].Name+" 3600 IN A 192.0.2.1")
	})
	const socket = "127.0.0.1:6000"
	reader := c.startReader(t, "-l", socket)
	d := c.start(t, `. {
		dnstap tcp://`+socket+` full
		cache 3600
		bind `+localIP+`
		forward . `+ip+`
		prometheus `+localIP+`:9153
	}`)
	ask := func(times int) {
		for range times {
			c.pod.Ask(t, "udp", localAddr, lab.Query("www.example.", dns.TypeA))
		}
	}
	dropped := func() float64 {
		sum, _ := c.node.Scrape(t, localIP+":9153").Sum("nodens_dnstap_messages_total", "result=dropped")
		return sum
	}
	d.Err.WaitFor(t, 0, "dnstap reader connected")
	ask(1)
	messages(t, reader, 4)

	reader.Signal(t, syscall.SIGSTOP)
	for late := time.Now().Add(2 * time.Minute); dropped() == 0; {
		if time.Now().After(late) {
			t.Fatal("nothing is dropped")
		}
		ask(100)
	}
	reader.Signal(t, syscall.SIGKILL)
	reader.Wait(t)
	ask(10)
	again := c.startReader(t, "-l", socket)
	again.Out.WaitForRetrying(t, 0, "message", time.Second, func() { ask(1) })
}
