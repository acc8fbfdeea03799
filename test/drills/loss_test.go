package drills

import (
	"fmt"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// attempts counts the queries for each name.
type attempts struct {
	mu sync.Mutex
	n  map[string]int
}

func (a *attempts) next(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == nil {
		a.n = map[string]int{}
	}
	a.n[name]++
	return a.n[name]
}

// TestLoss loses the first datagram to the upstream for 30% of all names, and the
// second one too for 9%. Every name resolves for a stub resolver that retries once,
// as all of them do.
func TestLoss(t *testing.T) {
	t.Parallel()
	n := lab.NewNetns(t, "node", addresses...)
	var seen attempts
	lab.StartUpstream(t, n, upstream+":53", func(q *dns.Msg) *dns.Msg {
		name := q.Question[0].Name
		if n := seen.next(name); index(name)%10 < 3 && (n == 1 || n == 2 && index(name)%100 < 30) {
			return nil
		}
		return answer(q)
	})
	start(t, n, corefile(upstream, ""))
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			name := fmt.Sprintf("n%d.example.org.", i)
			var r *dns.Msg
			var err error
			for range 2 {
				r, err = n.TryAsk(t, "udp", server, lab.Query(name, dns.TypeA))
				if err == nil && r.Rcode == dns.RcodeSuccess {
					return
				}
			}
			t.Errorf("%s: %v %v", name, r, err)
		})
	}
	wg.Wait()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for name, times := range seen.n {
		if index(name)%10 < 3 && times < 2 {
			t.Errorf("%s was lost and not retried", name)
		}
	}
}

// index returns N of nN.example.org.
func index(name string) (i int) {
	_, _ = fmt.Sscanf(name, "n%d.", &i)
	return i
}
