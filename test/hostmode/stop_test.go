package hostmode

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodens-dns/nodens/internal/lab"
)

// stopBound is how long nodens may take to end after SIGTERM, without a
// lameduck. It is the requirement, not a guess at what a machine can do.
const stopBound = 5 * time.Second

const (
	readyAddr  = "127.0.0.1:8181"
	healthAddr = "127.0.0.1:8080"
	readyLines = "ready " + readyAddr
)

// timeToEnd sends SIGTERM and returns how long nodens takes to end. The host must
// be as before.
func (d *daemon) timeToEnd(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	d.Signal(t, syscall.SIGTERM)
	status := d.Wait(t)
	took := time.Since(start)
	t.Logf("ended with status %d after %v", status, took)
	d.n.asBefore(t, "after SIGTERM")
	return took
}

// TestStopInTime ends nodens with clients and upstreams that would keep it. One
// try of three has to be in time: a machine may stand still, too.
func TestStopInTime(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		hold func(t *testing.T, n *node)
	}{
		{"idle", func(*testing.T, *node) {}},
		{"client sends and never reads", neverReads},
		{"client sent half a frame", halfFrame},
		{"client sent half a length", halfLength},
		{"client is connected and silent", func(t *testing.T, n *node) { n.Dial(t, "tcp", localAddr) }},
		{"upstream never answers", neverAnswered},
		{"scraper sent half a request", halfRequest},
		{"all of them at once", func(t *testing.T, n *node) {
			neverReads(t, n)
			halfFrame(t, n)
			neverAnswered(t, n)
			halfRequest(t, n)
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			took := stopHeld(t, s.hold)
			for range 2 {
				if took > stopBound {
					took = stopHeld(t, s.hold)
				}
			}
			if took > stopBound {
				t.Errorf("took %v to end, want %v at most", took, stopBound)
			}
		})
	}
}

// stopHeld returns how long a nodens took to end that hold would keep from it.
func stopHeld(t *testing.T, hold func(t *testing.T, n *node)) time.Duration {
	t.Helper()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP, "cache 30", readyLines, "health "+healthAddr)+
		"silent.example {\n bind "+localIP+"\n forward . 192.0.2.99\n}\nlarge.example {\n bind "+localIP+"\n cache 30\n forward . 192.0.2.98\n}\n")
	n.addUpstream(t, "192.0.2.99", func(*dns.Msg) *dns.Msg { return nil })
	n.addUpstream(t, "192.0.2.98", large)
	d := n.start(t, local()...)
	hold(t, n)
	return d.timeToEnd(t)
}

// addUpstream adds a pretended server.
func (n *node) addUpstream(t *testing.T, ip string, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	n.startServer(t, ip, answer)
	n.before = n.state(t)
}

// large is an answer of about 40,000 octets.
func large(q *dns.Msg) *dns.Msg {
	var records []string
	for i := range 200 {
		records = append(records, fmt.Sprintf(`%s 60 IN TXT "%d %s"`, q.Question[0].Name, i, strings.Repeat("x", 190)))
	}
	return lab.Reply(q, records...)
}

// neverReads sends queries with large answers until nodens takes no more, for
// it cannot write.
func neverReads(t *testing.T, n *node) {
	q := lab.Query("www.large.example.", dns.TypeTXT)
	n.Ask(t, "tcp", localAddr, q) // from now on it is a hit
	b, err := q.Pack()
	must(t, err)
	frames := bytes.Repeat(append([]byte{0, byte(len(b))}, b...), 2000)
	for range 5 {
		err = fill(t, n.Dial(t, "tcp", localAddr), frames)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		t.Logf("nodens gave the client up before SIGTERM: %v", err)
	}
	t.Fatal("nodens always gave the client up before SIGTERM")
}

// fill writes until the other side takes no more, or has closed.
func fill(t *testing.T, c net.Conn, b []byte) error {
	t.Helper()
	for {
		must(t, c.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
}

func halfFrame(t *testing.T, n *node) {
	b, err := lab.Query(outside, dns.TypeA).Pack()
	must(t, err)
	c := n.Dial(t, "tcp", localAddr)
	_, err = c.Write(append([]byte{0, byte(len(b))}, b[:len(b)/2]...))
	must(t, err)
	n.answers(t, localAddr, outside, outsideDNS) // later than the half
}

func halfLength(t *testing.T, n *node) {
	c := n.Dial(t, "tcp", localAddr)
	_, err := c.Write([]byte{0})
	must(t, err)
	n.answers(t, localAddr, outside, outsideDNS)
}

// neverAnswered has queries under way over UDP and TCP.
func neverAnswered(t *testing.T, n *node) {
	for _, network := range []string{"udp", "tcp"} {
		for i := range 20 {
			name := fmt.Sprintf("%s%d.silent.example.", network, i)
			c := n.Dial(t, network, localAddr)
			must(t, (&dns.Conn{Conn: c}).WriteMsg(lab.Query(name, dns.TypeA)))
			n.servers["192.0.2.99"].WaitFor(t, name)
		}
	}
}

func halfRequest(t *testing.T, n *node) {
	c := n.Dial(t, "tcp", readyAddr)
	_, err := c.Write([]byte("GET /ready HTTP/1.1\r\nHost:"))
	must(t, err)
	n.isReady(t, http.StatusOK)
}

func (n *node) isReady(t *testing.T, want int) {
	t.Helper()
	if status, body := n.Get(t, readyAddr, "/ready"); status != want {
		t.Errorf("/ready: %d %s, want %d", status, body, want)
	}
}

// TestLameduck: from SIGTERM on nodens is not ready, yet it answers until the
// lameduck is over; traffic is no longer steered to it from the beginning.
func TestLameduck(t *testing.T) {
	t.Parallel()
	const lameduck = 8 * time.Second // long enough for all the checks on a busy machine
	n := newNode(t)
	pod := n.addPod(t)
	n.pretendKubeProxy(t)
	n.write(t, corefilePath, forwards(clusterDNS, localIP+" "+serviceIP, readyLines, "health "+healthAddr+" {\n lameduck "+lameduck.String()+"\n}"))
	d := n.start(t, "-localip", localIP+","+serviceIP)
	n.isReady(t, http.StatusOK)
	start := time.Now()
	d.Signal(t, syscall.SIGTERM)
	d.Err.WaitFor(t, 0, `msg=lameduck`)
	n.isReady(t, http.StatusServiceUnavailable)
	if status, _ := n.Get(t, healthAddr, "/health"); status != http.StatusOK {
		t.Errorf("/health in the lameduck: %d", status)
	}
	for _, from := range []*lab.Netns{pod, n.Netns} {
		answersFrom(t, from, localAddr, inside, clusterDNS)
		answersFrom(t, from, serviceAddr, inside, backend)
	}
	n.isReady(t, http.StatusServiceUnavailable)
	n.has(t, false, "table inet nodens")
	select {
	case <-d.Done():
		t.Error("it has ended already: the checks above prove nothing")
	default:
	}
	d.ended(t)
	if took := time.Since(start); took < lameduck || took > lameduck+stopBound {
		t.Errorf("ended after %v, want the lameduck of %v and %v at most", took, lameduck, stopBound)
	}
	n.asBefore(t, "after SIGTERM")
}

// TestReadyMeansAnswering asks /ready throughout the start: who gets 200 gets an
// answer, and finds the host set up.
func TestReadyMeansAnswering(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP, readyLines))
	for range 5 {
		d := n.launch(t, raceChecked, local()...)
		tick := time.NewTicker(2 * time.Millisecond)
		for ready := false; !ready; {
			<-tick.C
			status, _, err := n.TryGet(t.Context(), readyAddr, "/ready")
			var op *net.OpError
			if err != nil && !errors.As(err, &op) {
				t.Fatal(err)
			}
			ready = status == http.StatusOK
			select {
			case <-d.Done():
				t.Fatalf("nodens ended:\n%s", d.Err.Text())
			default:
			}
		}
		tick.Stop()
		n.answers(t, localAddr, outside, outsideDNS)
		n.has(t, true, "table inet nodens ", "inet "+localIP+"/32")
		d.stop(t)
	}
}

// TestStopWhileStarting sends SIGTERM at many moments of the start: nothing is
// left.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP+" "+localIP6))
	ready := 0
	for i := range 25 {
		d := lab.Command{Netns: n.Netns, Args: []string{plain.Path(t), "-localip", localIP + "," + localIP6, "-conf", n.path(corefilePath)}}.Start(t)
		pause(t, time.Duration(i)*time.Millisecond)
		d.Signal(t, syscall.SIGTERM)
		d.Wait(t)
		if strings.Contains(d.Out.Text(), "listens on") {
			ready++
		}
		n.asBefore(t, fmt.Sprintf("after SIGTERM %d ms after the start", i))
	}
	t.Logf("%d of 25 had become ready", ready)
}

// TestStopWithoutAddress ends nodens when the addresses that it serves on have
// been taken away: that is no failure of its own.
func TestStopWithoutAddress(t *testing.T) {
	t.Parallel()
	for _, ip := range []string{localIP + "/32", localIP6 + "/128"} {
		t.Run(ip, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			before := n.before
			n.AddAddrs(t, "lo", ip)
			addr := strings.Split(ip, "/")[0]
			n.write(t, corefilePath, forwards(outsideDNS, addr))
			d := n.start(t, "-localip", addr, "-setupinterface=false")
			n.output(t, "ip", "addr", "del", ip, "dev", "lo")
			d.stop(t)
			n.before = before
			n.asBefore(t, "after SIGTERM")
		})
	}
}
