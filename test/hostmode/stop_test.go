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

// stopLimit is the time within which nodens must end after SIGTERM, without a
// lameduck. It is a requirement, independent of the machine.
const stopLimit = 5 * time.Second

const (
	readyAddr  = "127.0.0.1:8181"
	healthAddr = "127.0.0.1:8080"
	readyLines = "ready " + readyAddr
)

// timeToEnd sends SIGTERM and returns the time until nodens has ended. It checks
// that the host is restored.
func (d *daemon) timeToEnd(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	d.Signal(t, syscall.SIGTERM)
	status := d.Wait(t)
	took := time.Since(start)
	t.Logf("ended with status %d after %v", status, took)
	d.n.wantRestored(t, "after SIGTERM")
	return took
}

// TestStopInTime ends nodens while clients and upstreams could delay it. One try of
// three must be in time: the machine may be slow.
func TestStopInTime(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		busy func(t *testing.T, n *node)
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
			took := stopBusy(t, s.busy)
			for range 2 {
				if took > stopLimit {
					took = stopBusy(t, s.busy)
				}
			}
			if took > stopLimit {
				t.Errorf("took %v to end, want %v at most", took, stopLimit)
			}
		})
	}
}

// stopBusy returns the time until nodens has ended after busy.
func stopBusy(t *testing.T, busy func(t *testing.T, n *node)) time.Duration {
	t.Helper()
	n := newNode(t)
	n.write(t, corefilePath, forwards(outsideDNS, localIP, "cache 30", readyLines, "health "+healthAddr)+
		"silent.example {\n bind "+localIP+"\n forward . 192.0.2.99\n}\nlarge.example {\n bind "+localIP+"\n cache 30\n forward . 192.0.2.98\n}\n")
	n.addUpstream(t, "192.0.2.99", func(*dns.Msg) *dns.Msg { return nil })
	n.addUpstream(t, "192.0.2.98", large)
	d := n.start(t, local()...)
	busy(t, n)
	return d.timeToEnd(t)
}

// addUpstream adds a server.
func (n *node) addUpstream(t *testing.T, ip string, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	n.startServer(t, ip, answer)
	n.before = n.state(t)
}

// large is an answer of about 40,000 bytes.
func large(q *dns.Msg) *dns.Msg {
	var records []string
	for i := range 200 {
		records = append(records, fmt.Sprintf(`%s 60 IN TXT "%d %s"`, q.Question[0].Name, i, strings.Repeat("x", 190)))
	}
	return lab.Reply(q, records...)
}

// neverReads sends queries with large answers until nodens reads no more, because
// it cannot write.
func neverReads(t *testing.T, n *node) {
	q := lab.Query("www.large.example.", dns.TypeTXT)
	n.Ask(t, "tcp", localAddr, q) // the next ones are hits
	b, err := q.Pack()
	must(t, err)
	frames := bytes.Repeat(append([]byte{0, byte(len(b))}, b...), 2000)
	for range 5 {
		err = fill(t, n.Dial(t, "tcp", localAddr), frames)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		t.Logf("nodens closed the connection before SIGTERM: %v", err)
	}
	t.Fatal("nodens always closed the connection before SIGTERM")
}

// fill writes until the other side reads no more, or has closed.
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
	n.answers(t, localAddr, outside, outsideDNS) // after the half frame
}

func halfLength(t *testing.T, n *node) {
	c := n.Dial(t, "tcp", localAddr)
	_, err := c.Write([]byte{0})
	must(t, err)
	n.answers(t, localAddr, outside, outsideDNS)
}

// neverAnswered has queries in flight over UDP and TCP.
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

// TestLameduck: after SIGTERM, nodens is not ready and removes its rules, but
// answers until the lameduck is over.
func TestLameduck(t *testing.T) {
	t.Parallel()
	const lameduck = 8 * time.Second // long enough for all the checks on a busy machine
	n := newNode(t)
	pod := n.addPod(t)
	n.addKubeProxy(t)
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
		t.Error("nodens ended during the checks: this test cannot fail")
	default:
	}
	d.ended(t)
	if took := time.Since(start); took < lameduck || took > lameduck+stopLimit {
		t.Errorf("ended after %v, want the lameduck of %v and %v at most", took, lameduck, stopLimit)
	}
	n.wantRestored(t, "after SIGTERM")
}

// TestReadyMeansAnswering requests /ready throughout the start: after status 200,
// nodens answers and the host is set up.
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

// TestStopWhileStarting sends SIGTERM at many moments of the start: the host must be
// restored.
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
		n.wantRestored(t, fmt.Sprintf("after SIGTERM %d ms after the start", i))
	}
	t.Logf("%d of 25 had become ready", ready)
}

// TestStopWithoutAddress deletes the address that nodens serves on before SIGTERM:
// nodens must end without an error.
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
			n.wantRestored(t, "after SIGTERM")
		})
	}
}
