package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/nodens-dns/nodens/internal/state"
)

// wait limits each wait. It is long, for a loaded machine.
const wait = time.Minute

func example() *state.State {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &state.State{
		Version: "1.2.3", Node: "node1", Ready: true, Started: start, Time: start.Add(100 * time.Second),
		Requests: 1000, Hits: 900, Misses: 100, Failures: 10,
		Cache:       state.Cache{Bytes: 3 << 20, Budget: 64 << 20},
		Redirection: state.Redirection{Mode: "auto", State: "on"},
		Fastpath:    state.Fastpath{Mode: "on", State: "on", Answers: 500},
		Zones:       []state.Zone{{Name: "cluster.local.", Requests: 1000, Hits: 3, Misses: 1, MissLatency: state.Latency{Count: 1, P50: 0.0012345, P99: 0.25}}},
		Upstreams:   []state.Upstream{{Zone: ".", Address: "192.0.2.1:53", Protocol: "udp", Healthy: true}, {Zone: ".", Address: "192.0.2.2:53", Protocol: "udp"}},
		Top: map[string]state.TopLists{
			"1m": {Covers: 10, Queries: 200, Names: []state.Entry{{Key: "www.example.org.", Zone: ".", Count: 100}, {Key: "api.example.net.", Zone: ".", Count: 1}},
				Clients: []state.Entry{{Key: "10.0.0.7", Label: "shop/cart", Count: 50}},
				Slow:    []state.Entry{{Key: "slow.example.", Zone: ".", Count: 4, Seconds: 6}}},
			"5m": {Covers: 20, Queries: 200, Names: []state.Entry{{Key: "five.example.", Zone: ".", Count: 100}}},
		},
	}
}

func TestPrint(t *testing.T) {
	var out bytes.Buffer
	s := example()
	s.Problems = []string{"all upstreams of zone . are down\x1b[2J"}
	if err := Print(&out, s, "1m", 1); err != nil {
		t.Fatal(err)
	}
	want := `nodens 1.2.3  node1  ready  up 1m40s
10.0 queries/s  90.0% hits  1.0% SERVFAIL  cache 3.0M of 64.0M
redirection auto (on)  fast path on (on, 50.0% of queries)  upstreams 2, 1 down
PROBLEM: all upstreams of zone . are down?[2J

names
QUERIES/S  SHARE  NAME              ZONE
     10.0  50.0%  www.example.org.  .

clients
QUERIES/S  SHARE  CLIENT    POD
      5.0  25.0%  10.0.0.7  shop/cart

slow
WAITED  MEAN  LOOKUPS  NAME           ZONE
    6s  1.5s        4  slow.example.  .

zones
QUERIES   HITS  FAILED  P99 HIT  P50 MISS  P99 MISS  ENTRIES  CACHE  ZONE
   1000  75.0%       0        -    1.23ms     250ms        0     0K  cluster.local.

upstreams
QUERIES  FAILED  P50  P99  STATE  UPSTREAM      PROTOCOL  ZONE
      0       0    -    -  up     192.0.2.1:53  udp       .
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// The rates of two states are those between them, unless nodens was restarted.
func TestSummaryRates(t *testing.T) {
	before, s := example(), example()
	s.Time = s.Time.Add(time.Second)
	s.Requests += 5000
	s.Hits += 5000
	if got := summary(s, before)[1]; !strings.HasPrefix(got, "5000 queries/s  100.0% hits") {
		t.Error(got)
	}
	before.Started = before.Started.Add(-time.Hour)
	if got := summary(s, before)[1]; !strings.HasPrefix(got, "59.4 queries/s  98.3% hits") {
		t.Error(got)
	}
}

// server reports the example as the daemon does.
func server(t *testing.T, token string) (address string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(state.TokenHeader) != token {
			http.Error(w, "no token", http.StatusUnauthorized)
			return
		}
		text, _ := json.Marshal(example())
		_, _ = w.Write([]byte("data: " + string(text) + "\n\n"))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestDaemon(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := server(t, "secret")
	source, err := Daemon(address, file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (Options{JSON: true, Window: "1m"}).Run(t.Context(), &out, source); err != nil {
		t.Fatal(err)
	}
	if s, err := state.Read(&out); err != nil || s.Node != "node1" {
		t.Errorf("%+v, %v", s, err)
	}
	source, err = Daemon(address, "")
	if err == nil {
		_, err = First(t.Context(), source)
	}
	if err == nil || !strings.Contains(err.Error(), "no token") {
		t.Errorf("without the token: %v", err)
	}
	if _, err := Daemon("", ""); err == nil || !strings.Contains(err.Error(), "-status-address") {
		t.Errorf("no address: %v", err)
	}
}

// A daemon that hangs is no connection, whatever it has sent before.
func TestSilentDaemon(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := json.Marshal(example())
		_, _ = w.Write([]byte("data: " + string(text) + "\n\n"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer s.Close() // waits until the connection is closed
	source, err := Daemon(s.Listener.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	if err := source(ctx, func(*state.State) error { return nil }); !errors.Is(err, errSilent) {
		t.Error(err)
	}
}

// shown is a view on a simulated terminal.
type shown struct {
	t      *testing.T
	screen tcell.SimulationScreen
	view   view
}

func show(t *testing.T, s *state.State) *shown {
	t.Helper()
	x := &shown{t: t, screen: simulate(t)}
	x.view = view{screen: x.screen, window: "1m"}
	x.view.draw()
	x.expect("", "waiting for the state")
	x.view.report(news{state: s})
	x.view.draw()
	return x
}

func simulate(t *testing.T) tcell.SimulationScreen {
	t.Helper()
	screen := tcell.NewSimulationScreen("UTF-8")
	if err := screen.Init(); err != nil {
		t.Fatal(err)
	}
	screen.SetSize(80, 20)
	return screen
}

// expect checks that the screen shows all texts of want, and does not show not.
func (x *shown) expect(not string, want ...string) {
	x.t.Helper()
	cells, width, _ := x.screen.GetContents()
	var b strings.Builder
	for i, c := range cells {
		if i%width == 0 {
			b.WriteByte('\n')
		}
		b.WriteString(string(c.Runes))
	}
	for _, w := range want {
		if !strings.Contains(b.String(), w) {
			x.t.Errorf("no %q:%s", w, b.String())
		}
	}
	if not != "" && strings.Contains(b.String(), not) {
		x.t.Errorf("%q:%s", not, b.String())
	}
}

// press handles one key, and reports whether it ends the program.
func (x *shown) press(key tcell.Key, r rune) bool {
	end := x.view.handle(tcell.NewEventKey(key, r, tcell.ModNone))
	x.view.draw()
	return end
}

func (x *shown) keys(text string) {
	for _, r := range text {
		if x.press(tcell.KeyRune, r) {
			x.t.Errorf("%q ends it", r)
		}
	}
}

func TestScreen(t *testing.T) {
	x := show(t, example())
	x.expect("waiting", "node1", "10.0 queries/s", "[names]", "www.example.org.", "api.example.net.", "last 1m", "q quit")
	x.keys("/APIq")
	x.expect("www.example.org.", "filter: APIq")
	x.press(tcell.KeyBackspace2, 0)
	x.press(tcell.KeyEnter, 0)
	x.expect("www.example.org.", "api.example.net.", "filter: API")
	x.press(tcell.KeyEscape, 0)
	x.expect("filter:", "www.example.org.")
	x.keys("5")
	x.expect("www.example.org.", "five.example.", "last 5m")
	x.keys("60")
	x.expect("five.example.", "last 60m")
	x.keys("1")
	x.press(tcell.KeyTab, 0)
	x.expect("www.example.org.", "[clients]", "shop/cart")
	x.press(tcell.KeyBacktab, 0)
	x.press(tcell.KeyBacktab, 0)
	x.expect("", "[upstreams]", "192.0.2.2:53")
	x.view.report(news{err: errors.New("connection refused")})
	x.view.draw()
	x.expect("", "no connection: connection refused", "192.0.2.2:53")
	x.view.report(news{state: example()})
	x.view.draw()
	x.expect("no connection")
	if !x.press(tcell.KeyRune, 'q') || !x.press(tcell.KeyCtrlC, 0) {
		t.Error("q or Ctrl-C does not end it")
	}
	if !x.view.handle(tcell.NewEventError(errors.New("input/output error"))) {
		t.Error("it goes on without a terminal")
	}
}

// A small screen shows a part of a long list, and every row of it after some keys.
func TestScroll(t *testing.T) {
	s := example()
	lists := s.Top["1m"]
	for range 100 {
		lists.Names = append(lists.Names, state.Entry{Key: "many.example."})
	}
	lists.Names = append(lists.Names, state.Entry{Key: "last.example."})
	s.Top["1m"] = lists
	x := show(t, s)
	x.expect("last.example.", "www.example.org.")
	for range 20 {
		x.press(tcell.KeyPgDn, 0)
	}
	x.expect("www.example.org.", "last.example.")
	for range 120 {
		x.press(tcell.KeyUp, 0)
	}
	x.expect("last.example.", "www.example.org.")
	x.screen.SetSize(3, 2)
	x.press(tcell.KeyDown, 0)
}

// run shows what the source reports, connects again, and ends by a key.
func TestRun(t *testing.T) {
	screen := simulate(t)
	states := make(chan news)
	source := func(ctx context.Context, show func(*state.State) error) error {
		select {
		case n := <-states:
			if n.state != nil {
				return show(n.state)
			}
			return n.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(t.Context(), screen, source, "1m")
	}()
	states <- news{err: errors.New("refused")}
	states <- news{state: example()}
	states <- news{state: example()} // the first one is on the screen
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	select {
	case <-ended:
	case <-time.After(wait):
		t.Fatal("q does not end it")
	}
	(&shown{t: t, screen: screen}).expect("refused", "node1")
}
