package normalize

import (
	"testing"

	"github.com/miekg/dns"
)

// TestTwoPorts serves one zone on two ports of an address with different options.
// Both answer as their block says, and the metrics can be scraped.
func TestTwoPorts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	up := c.addServer(t, "upstream")
	names := script{"x": {nodata, nodata}}
	startUpstream(t, up.netns, names.answer, up.forNode)
	c.start(t, buildPlain, "nameserver "+up.forNode+"\nsearch "+suffix+"\n",
		rootBlock(53, localIP, admin)+rootBlock(54, localIP, "normalize {\n mode off\n}"))
	for port, want := range map[string]int{"53": dns.RcodeNameError, "54": dns.RcodeSuccess} {
		if r := c.ask(t, localIP+":"+port, "x."+suffix, dns.TypeA); r.Rcode != want {
			t.Errorf("port %s: %s, want %s", port, dns.RcodeToString[r.Rcode], dns.RcodeToString[want])
		}
	}
	if _, ok := c.node.Scrape(t, metrics).Sum("coredns_cache_entries", "server=dns://"+localIP+":54"); !ok {
		t.Error("no metrics of the cache of port 54")
	}
}
