package fastpath

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// version answers A queries with an address that says how often the answer has
// changed.
type version struct {
	n   atomic.Uint32
	ttl uint32 // seconds
}

func (v *version) answer(q *dns.Msg) *dns.Msg {
	if q.Question[0].Qtype != dns.TypeA {
		return lab.Denial(q, dns.RcodeSuccess, ".")
	}
	n := v.n.Add(1)
	r := lab.ReplyAddress(q, fmt.Sprintf("192.0.%d.%d", n>>8, n&0xff))
	r.Answer[0].Header().Ttl = v.ttl
	return r
}

// versionIn is the version in a reply.
func versionIn(r *dns.Msg) (uint32, error) {
	if data := lab.Data(r, dns.TypeA); len(data) == 1 {
		if ip := net.ParseIP(data[0]).To4(); ip != nil {
			return uint32(ip[2])<<8 | uint32(ip[3]), nil
		}
	}
	return 0, fmt.Errorf("unexpected reply %v", r)
}

// TestNoOldAnswer: once any client has seen a new answer, no later query of any client
// gets an older one. The clients query all the time, from two pods, while answers
// expire, or prefetch replaces them before they do, and reloads move them to other zones.
func TestNoOldAnswer(t *testing.T) {
	t.Run("expire", func(t *testing.T) { noOldAnswer(t, servers()[0], 1, "") })
	t.Run("prefetch", func(t *testing.T) { noOldAnswer(t, servers()[1], 10, "\n        prefetch 1 1h 90%") })
}

func noOldAnswer(t *testing.T, server string, ttl uint32, prefetch string) {
	const name = "5.4.3.2.1.example."
	block := func(options string) string {
		return strings.Replace(corefileWith(options), " 3600 1\n", " 3600 1"+prefetch+"\n", 1)
	}
	conf, zone := block("fastpath on"), "example."
	v := &version{ttl: ttl}
	n := newNode(t, v.answer)
	d := lab.StartDaemon(t, lab.DaemonOptions{Binary: nodens.Path(t), Netns: n.Netns, Corefile: conf, Args: []string{"-keep-privileges"}})
	n.WaitForMetric(t, metrics, 2, "nodens_kernel_interfaces")
	n.warm(t, n.routed, server, name)
	n.warm(t, n.bridged, server, name)
	before, start := n.answers(t), v.n.Load()
	var newest atomic.Uint32
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for _, pod := range []*lab.Netns{n.routed, n.bridged, n.Netns} {
		c := pod.Dial(t, "udp", server)
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				seen := newest.Load()
				r, err := lab.AskOn(c, lab.Query(name, dns.TypeA))
				if err != nil {
					t.Errorf("%s: %v", pod.Name, err)
					return
				}
				got, err := versionIn(r)
				if err != nil || got < seen {
					t.Errorf("%s: version %d (%v) after version %d was seen", pod.Name, got, err, seen)
					return
				}
				for old := newest.Load(); got > old && !newest.CompareAndSwap(old, got); old = newest.Load() {
				}
			}
		})
	}
	for i := range 5 {
		// The new block has no answer yet. The cache of the block before keeps the old one.
		zone = fmt.Sprintf("%d.%s", i+1, zone)
		conf += zone + strings.TrimPrefix(block(""), ".")
		mark := d.Err.Mark()
		lab.ReplaceFile(t, d.Conf, conf)
		d.Signal(t, syscall.SIGHUP)
		d.Err.WaitFor(t, mark, `msg=reloaded`)
		want := v.n.Load() + 2 // the answer has changed meanwhile
		for late := time.Now().Add(time.Minute); v.n.Load() < want && time.Now().Before(late); {
			time.Sleep(20 * time.Millisecond)
		}
	}
	close(stop)
	clients.Wait()
	kernel := n.answers(t) - before
	t.Logf("%d versions, %v answers by the kernel; passed: %s", v.n.Load()-start, kernel, n.passed(t))
	if kernel < 1000 || v.n.Load()-start < 5 {
		t.Error("the test did not cover changes of answers in the kernel")
	}
	if replaced, _ := n.Scrape(t, metrics).Sum("coredns_cache_prefetch_total"); (replaced > 0) != (prefetch != "") {
		t.Errorf("%v answers were prefetched", replaced)
	}
}
