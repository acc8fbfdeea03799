package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const envClient = "NODENS_LAB_CLIENT"

// GoClient is testdata/client.c with Go's resolver, which uses TCP if resolv.conf has
// use-vc: a command line and an environment for a test binary whose TestMain calls
// Main. args are those of client.c.
func GoClient(t testing.TB, args ...string) (line, env []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self}, []string{envClient + "=" + strings.Join(args, " ")}
}

// goClient does what client.c does, until SIGTERM.
func goClient(args []string) {
	c := &lookups{suffix: args[0], rounds: make([]int, number(args[2]))}
	if len(args) > 3 {
		c.popular = args[3]
	}
	c.ended.L = &c.mu
	c.period = time.Second * time.Duration(len(c.rounds)) / time.Duration(number(args[1]))
	for worker := range c.rounds {
		go c.run(worker)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM)
	fmt.Println("started")
	for s := range signals {
		if s == syscall.SIGTERM {
			return
		}
		c.endRound()
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

type lookups struct {
	suffix  string
	popular string        // every second lookup, unless empty
	period  time.Duration // of lookups of one worker

	mu            sync.Mutex // guards what follows
	ended         sync.Cond  // a lookup has ended
	round         int
	rounds        []int // the round of each worker's last lookup
	count, failed int
	longest       time.Duration
}

func (c *lookups) run(worker int) {
	resolver := net.Resolver{PreferGo: true}
	due := time.Now().Add(time.Duration(worker) * c.period / time.Duration(len(c.rounds)))
	for i := 0; ; i++ {
		<-time.After(time.Until(due))
		name := fmt.Sprintf("n%d-%d.%s", worker, i, c.suffix)
		families := 2
		if c.popular != "" && i%2 == 1 {
			name, families = c.popular, 1
		}
		start := time.Now()
		addrs, err := resolver.LookupNetIP(context.Background(), "ip", name)
		took := time.Since(start)
		if err == nil && len(addrs) < families {
			err = fmt.Errorf("%d addresses", len(addrs))
		}
		c.record(worker, name, took, err)
		if due = due.Add(c.period); time.Now().After(due) {
			due = time.Now()
		}
	}
}

func (c *lookups) record(worker int, name string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.longest = max(c.longest, took)
	if err != nil {
		c.failed++
		fmt.Println("failed", name, took.Milliseconds(), err)
	}
	c.rounds[worker] = c.round
	c.ended.Signal()
}

func (c *lookups) endRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	for worker := range c.rounds {
		for c.rounds[worker] < c.round {
			c.ended.Wait()
		}
	}
	fmt.Println("round", c.count, c.failed, c.longest.Milliseconds())
	c.count, c.failed, c.longest = 0, 0, 0
}
