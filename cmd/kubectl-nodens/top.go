package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodens-dns/nodens/internal/state"
	"github.com/nodens-dns/nodens/internal/top"
)

func topCommand(c *cluster) *cobra.Command {
	var o top.Options
	var f format
	var window string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the top names and clients of the cluster",
		Long: `Show the top names, clients and NXDOMAIN names, the names with the longest waits,
zones and upstreams of all nodes together. Latencies are those of the worst node.
-o json and yaml print the merged state once. A printed list has 20 rows; with -o wide,
it has all.

Exit status: 0 all nodes answered; 1 one did not, and the output is without it; 2 an error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.SetWindow(window); err != nil {
				return err
			}
			return c.top(cmd.Context(), o, f)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&o.Once, "once", false, "print once")
	cmd.Flags().StringVar(&window, "window", "1m", "period of the lists: 1m, 5m or 60m")
	return cmd
}

func (c *cluster) top(ctx context.Context, o top.Options, f format) error {
	if !f.data() && !o.Once && top.IsTerminal(c.out) {
		c.errs = nil // no progress on the screen of top
		return top.Show(ctx, c.follow, o.Window)
	}
	s, whole, err := c.merged(ctx)
	if err != nil {
		return err
	}
	rows := 20
	if f == "wide" {
		rows = math.MaxInt
	}
	if f.data() {
		err = f.print(c.out, s)
	} else {
		err = top.Print(c.out, s, o.Window, rows)
	}
	if err == nil && !whole {
		return exitStatus(1)
	}
	return err
}

// follow is a top.Source of the merged state.
func (c *cluster) follow(ctx context.Context, show func(*state.State) error) error {
	for {
		s, _, err := c.merged(ctx)
		if err != nil {
			return err
		}
		if err := show(s); err != nil {
			return err
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// merged returns the merged state of all nodes, and whether all answered. Nodes that do
// not answer become problems of the state. If no node answers, it returns an error.
func (c *cluster) merged(ctx context.Context) (s *state.State, whole bool, err error) {
	answers, err := c.states(ctx)
	if err != nil {
		return nil, false, err
	}
	var states []*state.State
	var problems []string
	for _, a := range answers {
		if a.Err != nil {
			problems = append(problems, a.Node+": "+sentence(a.Err))
			continue
		}
		states = append(states, a.Value)
	}
	if len(states) == 0 {
		return nil, false, failed(answers)
	}
	s = state.Merge(states)
	if len(problems) > 0 {
		s.Node = fmt.Sprintf("%d of %s", len(states), count(len(answers), "node"))
		s.Problems, s.Ready = append(problems, s.Problems...), false
	}
	return s, len(problems) == 0, nil
}
