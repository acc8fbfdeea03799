package kill

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// goClient does what client.c of the lab does, with Go's own resolver, which uses
// TCP if resolv.conf has use-vc. It does not return.
func goClient() {
	c := &lookups{suffix: os.Args[1], rounds: make([]int, number(os.Args[3]))}
	c.ended.L = &c.mu
	c.period = time.Second * time.Duration(len(c.rounds)) / time.Duration(number(os.Args[2]))
	for worker := range c.rounds {
		go c.run(worker)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGTERM)
	fmt.Println("started")
	for s := range signals {
		if s == syscall.SIGTERM {
			break
		}
		c.endRound()
	}
	os.Exit(0)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

type lookups struct {
	suffix string
	period time.Duration // of lookups of one worker

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
		name := fmt.Sprintf("n%d-%d.%s.", worker, i, c.suffix)
		start := time.Now()
		addrs, err := resolver.LookupNetIP(context.Background(), "ip", name)
		took := time.Since(start)
		if err == nil && len(addrs) != 2 {
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
