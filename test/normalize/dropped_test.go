package normalize

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// TestDroppedAAAA: an upstream denies A and drops AAAA. A musl client that asks only
// for A continues its search, as without normalize. The time that normalize adds is
// less than the 2 s that it took when the client had to wait for AAAA.
func TestDroppedAAAA(t *testing.T) {
	t.Parallel()
	const second, addr = "second.example.", "192.0.2.80"
	c, _ := nodeWith(t, buildRace, func(q *dns.Msg, _ string) *dns.Msg {
		switch name := dns.CanonicalName(q.Question[0].Name); {
		case q.Question[0].Qtype != dns.TypeA:
			return nil
		case strings.HasSuffix(name, second):
			return lab.Reply(q, name+" 60 IN A "+addr)
		}
		return lab.Denial(q, dns.RcodeNameError, suffix)
	}, "")
	lab.NeedTools(t, "musl-gcc")
	musl := client{name: "musl -4", args: []string{buildMusl.Path(t), "-4"}}
	took := make(map[string]time.Duration)
	for _, ip := range []string{otherIP, localIP} {
		p := newPod(t, c.pod, "nameserver "+ip+"\nsearch "+suffix+" "+second+"\noptions ndots:5\n")
		got := p.lookup(t, musl, "www")["www"]
		if !slices.Equal(got.Data, []string{addr}) {
			t.Errorf("through %s: %v", ip, got)
		}
		took[ip] = got.Took
	}
	t.Logf("%v with normalize, %v without", took[localIP], took[otherIP])
	if added := took[localIP] - took[otherIP]; added >= 1900*time.Millisecond {
		t.Errorf("normalize adds %v", added)
	}
	if r := c.ask(t, onAddr, "other."+suffix, dns.TypeA); r.Rcode != dns.RcodeNameError || len(r.Ns) == 0 || r.Ns[0].Header().Ttl > 5 {
		t.Errorf("not the upstream's NXDOMAIN with at most 5 s: %v", r)
	}
}
