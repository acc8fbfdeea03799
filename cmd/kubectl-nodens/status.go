package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodens-dns/nodens/internal/state"
	"github.com/nodens-dns/nodens/internal/top"
)

func statusCommand(c *cluster) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodens on each node",
		Long: `Show nodens on each node: its version, whether it is ready, the share of
lookups that the cache answered since the start, the worst p99 of a zone's misses in the last
minute, upstreams that fail, redirection, and kernel answers.

Exit status: 0 all nodes are ready; 1 one is not; 2 an error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.status(cmd.Context(), f) },
	}
	f.add(cmd)
	return cmd
}

// nodeStatus is one node in the output of status.
type nodeStatus struct {
	Node  string       `json:"node"`
	Pod   string       `json:"pod"`
	Error string       `json:"error,omitempty"`
	State *state.State `json:"state,omitempty"` // without lists and Corefile
}

func (c *cluster) status(ctx context.Context, f format) error {
	answers, err := c.states(ctx)
	if err != nil {
		return err
	}
	var all []nodeStatus
	ready := true
	for _, a := range answers {
		n := nodeStatus{Node: a.Node, Pod: a.Pod, State: a.Value}
		if a.Err != nil {
			n.State, n.Error = nil, sentence(a.Err)
		} else {
			n.State.Top, n.State.Corefile = nil, ""
		}
		ready = ready && n.State != nil && n.State.Ready
		all = append(all, n)
	}
	if f.data() {
		err = f.print(c.out, all)
	} else {
		err = table(c.out, statusRows(all, f == "wide"))
		for _, n := range all {
			if err == nil && n.State == nil {
				_, err = fmt.Fprintf(c.out, "%s: no state: %s\n", n.Node, top.Printable(n.Error))
			}
		}
	}
	if err == nil && !ready {
		return exitStatus(1)
	}
	return err
}

// states gets the state of each node.
func (c *cluster) states(ctx context.Context) ([]answer[*state.State], error) {
	pods, err := c.pods(ctx)
	if err != nil {
		return nil, err
	}
	return each(ctx, c, pods, func(ctx context.Context, pod *corev1.Pod) (*state.State, error) {
		text, err := c.ask(ctx, pod, askState)
		if err != nil {
			return nil, err
		}
		s, err := state.Read(bytes.NewReader(text))
		if err == nil {
			s.Node = pod.Spec.NodeName
		}
		return s, err
	}), nil
}

func statusRows(all []nodeStatus, wide bool) [][]string {
	rows := [][]string{{"NODE", "VERSION", "READY", "HITS", "P99 MISS", "UPSTREAMS", "REDIRECTION", "FAST PATH"}}
	if wide {
		rows[0] = append(rows[0], "POD", "UP", "QUERIES", "SERVFAIL", "CACHE", "PROBLEMS")
	}
	for _, n := range all {
		if n.State == nil {
			row := slices.Repeat([]string{"-"}, len(rows[0]))
			row[0], row[2] = n.Node, "no"
			rows = append(rows, row)
			continue
		}
		row := []string{n.Node, n.State.Version, yesNo(n.State.Ready), percent(n.State.Hits, n.State.Hits+n.State.Misses), worstMiss(n.State.Zones),
			upstreamHealth(n.State.Upstreams), modeAndState(n.State.Redirection.Mode, n.State.Redirection.State), modeAndState(n.State.Fastpath.Mode, n.State.Fastpath.State)}
		if wide {
			row = append(row, n.Pod, n.State.Time.Sub(n.State.Started).Round(time.Second).String(), strconv.FormatUint(n.State.Requests, 10),
				strconv.FormatUint(n.State.Failures, 10), fmt.Sprintf("%d of %d MiB", n.State.Cache.Bytes>>20, n.State.Cache.Budget>>20),
				cmp.Or(strings.Join(n.State.Problems, "; "), "none"))
		}
		rows = append(rows, row)
	}
	return rows
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// worstMiss is the longest p99 of a zone's misses.
func worstMiss(zones []state.Zone) string {
	var count uint64
	var worst float64
	for _, z := range zones {
		count += z.MissLatency.Count
		worst = max(worst, z.MissLatency.P99)
	}
	if count == 0 {
		return "-"
	}
	return time.Duration(worst * float64(time.Second)).Round(10 * time.Microsecond).String()
}

// upstreamHealth names the upstreams that fail.
func upstreamHealth(all []state.Upstream) string {
	var down []string
	for _, u := range all {
		if !u.Healthy {
			down = append(down, u.Address)
		}
	}
	if len(down) == 0 {
		return fmt.Sprintf("%d up", len(all))
	}
	return fmt.Sprintf("%d up, down: %s", len(all)-len(down), strings.Join(down, ","))
}

func modeAndState(mode, state string) string {
	if mode == state {
		return mode
	}
	return mode + ": " + state
}
