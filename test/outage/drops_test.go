package outage

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nodens-dns/nodens/internal/lab"
)

// drops are the datagrams that did not fit the receive queues of sockets: queries to
// the server, replies to clients, and all others, such as queries to the upstream.
type drops struct{ queries, replies, others int }

func (d drops) String() string { return fmt.Sprintf("%d+%d+%d", d.queries, d.replies, d.others) }

// countDrops returns the drops in n so far. The clients' sockets must be open.
func countDrops(t *testing.T, n *lab.Netns) (d drops) {
	t.Helper()
	for line := range strings.Lines(netFile(t, n, "udp")) {
		f := strings.Fields(line)
		if len(f) != 13 {
			continue
		}
		k, _ := strconv.Atoi(f[12])
		switch local, _, _ := strings.Cut(f[1], ":"); {
		case f[1] == "0100007F:0035": // 127.0.0.1:53
			d.queries += k
		case strings.HasSuffix(local, "01007F"): // 127.0.1.0/24
			d.replies += k
		}
	}
	d.others = counter(t, netFile(t, n, "snmp"), "RcvbufErrors") - d.queries - d.replies
	return d
}

// counter returns a counter of UDP from the text of the file snmp, which has a line of
// names and one of values.
func counter(t *testing.T, snmp, name string) int {
	t.Helper()
	var names []string
	for line := range strings.Lines(snmp) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] != "Udp:":
		case names == nil:
			names = f
		default:
			k, err := strconv.Atoi(f[slices.Index(names, name)])
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
	}
	t.Fatal("no counters of UDP")
	return 0
}

// netFile reads a file of proc's folder net in n.
func netFile(t *testing.T, n *lab.Netns, name string) string {
	t.Helper()
	var text []byte
	n.Inside(t, func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/" + name)
		return err
	})
	return string(text)
}
