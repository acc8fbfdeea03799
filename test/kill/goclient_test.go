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
// TCP if resolv.conf says so. It does not return.
func goClient() {
	c := &lookups{suffix: os.Args[1], rounds: make([]int, number(os.Args[3]))}
	c.passed.L = &c.mu
	c.period = time.Second * time.Duration(len(c.rounds)) / time.Duration(number(os.Args[2]))
	for me := range c.rounds {
		go c.run(me)
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
	period time.Duration // of each goroutine

	mu            sync.Mutex
	passed        sync.Cond
	round         int
	rounds        []int // each goroutine's
	count, failed int
	longest       time.Duration
}

func (c *lookups) run(me int) {
	resolver := net.Resolver{PreferGo: true}
	due := time.Now().Add(time.Duration(me) * c.period / time.Duration(len(c.rounds)))
	for i := 0; ; i++ {
		<-time.After(time.Until(due))
		name := fmt.Sprintf("n%d-%d.%s.", me, i, c.suffix)
		start := time.Now()
		addrs, err := resolver.LookupNetIP(context.Background(), "ip", name)
		took := time.Since(start)
		if err == nil && len(addrs) != 2 {
			err = fmt.Errorf("%d addresses", len(addrs))
		}
		c.note(me, name, took, err)
		if due = due.Add(c.period); time.Now().After(due) {
			due = time.Now()
		}
	}
}

func (c *lookups) note(me int, name string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.longest = max(c.longest, took)
	if err != nil {
		c.failed++
		fmt.Println("failed", name, took.Milliseconds(), err)
	}
	c.rounds[me] = c.round
	c.passed.Signal()
}

func (c *lookups) endRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	for me := range c.rounds {
		for c.rounds[me] < c.round {
			c.passed.Wait()
		}
	}
	fmt.Println("round", c.count, c.failed, c.longest.Milliseconds())
	c.count, c.failed, c.longest = 0, 0, 0
}
