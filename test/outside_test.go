package test

import (
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestTheInternetIsRefused serves on every address. nodens answers the pod, the
// node and the node's neighbours, and refuses clients beyond the router unless
// -clients all is set.
func TestTheInternetIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	world := lab.NewNetns(t, "world")
	const nodeIP, router, stranger = "192.0.2.10", "192.0.2.1", "198.51.100.7"
	c.node.Join(t, "up0", []string{nodeIP + "/24"}, world, "eth0", []string{router + "/24"})
	world.AddAddrs(t, "lo", stranger+"/32")
	c.node.AddRoute(t, "0.0.0.0/0", router)
	corefile := `. {
		hosts {
			192.0.2.99 www.example.org
		}
		` + admin + `
	}`
	for _, tt := range []struct {
		name  string
		args  []string
		world int // rcode
	}{
		{"by default", nil, dns.RcodeRefused},
		{"-clients all", []string{"-clients", "all"}, dns.RcodeSuccess},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab.StartDaemon(t, lab.DaemonOptions{Binary: buildRace.Path(t), Netns: c.node, Corefile: corefile, Args: tt.args})
			for _, network := range []string{"udp", "tcp"} {
				for _, who := range []struct {
					name string
					ns   *lab.Netns
					ip   string
					to   string
					want int
				}{
					{"pod", c.pod, "10.0.1.5", "10.0.1.1:53", dns.RcodeSuccess},
					{"node", c.node, "127.0.0.1", "127.0.0.1:53", dns.RcodeSuccess},
					{"node, by its address", c.node, nodeIP, nodeIP + ":53", dns.RcodeSuccess},
					{"neighbour", world, router, nodeIP + ":53", dns.RcodeSuccess},
					{"stranger", world, stranger, nodeIP + ":53", tt.world},
				} {
					if got := askFrom(t, who.ns, network, who.ip, who.to); got != who.want {
						t.Errorf("%s, %s: %s, want %s", who.name, network, dns.RcodeToString[got], dns.RcodeToString[who.want])
					}
				}
			}
			want := map[int]float64{dns.RcodeRefused: 2}[tt.world]
			if n, _ := c.node.Scrape(t, metrics).Sum("nodens_server_outsiders_refused_total"); n != want {
				t.Errorf("%v refusals counted, want %v", n, want)
			}
		})
	}
}

// askFrom sends a query from one of the namespace's addresses and returns the
// rcode.
func askFrom(t *testing.T, n *lab.Netns, network, from, to string) (rcode int) {
	t.Helper()
	d := &net.Dialer{Timeout: lab.QueryTimeout, LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
	if network == "tcp" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	var c net.Conn
	err := n.Do(func() (err error) {
		c, err = d.Dial(network, to)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(lab.QueryTimeout)); err != nil {
		t.Fatal(err)
	}
	r, err := lab.AskOn(c, lab.Query("www.example.org.", dns.TypeA))
	if err != nil {
		t.Fatalf("%s from %s: %v", network, from, err)
	}
	return r.Rcode
}
