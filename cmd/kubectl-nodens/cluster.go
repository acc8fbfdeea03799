package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodens-dns/nodens/internal/top"
)

// container is the name of nodens's container in its pods.
const container = "nodens"

// cluster has the values of the global flags and the client of the API server.
type cluster struct {
	flags     *genericclioptions.ConfigFlags
	out, errs io.Writer

	selector  string
	nodes     []string // empty: all
	parallel  int
	timeout   time.Duration // for one node
	via       string        // auto, exec or proxy
	tokenFile string

	config *rest.Config
	client kubernetes.Interface
}

// connect creates the client. It sends no request.
func (c *cluster) connect() (err error) {
	switch {
	case c.via != viaAuto && c.via != viaExec && c.via != viaProxy:
		return fmt.Errorf("--via %s: want auto, exec or proxy", c.via)
	case c.parallel < 1:
		return fmt.Errorf("--parallel %d: want at least 1", c.parallel)
	case c.timeout <= 0:
		return fmt.Errorf("--node-timeout %v: want more than 0", c.timeout)
	}
	if c.config, err = c.flags.ToRESTConfig(); err != nil {
		return err
	}
	// --parallel limits the requests.
	c.config.QPS = -1
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}

func (c *cluster) namespace() string { return *c.flags.Namespace }

// pods connects and returns the pods of nodens in the order of their nodes. If a node has
// several, it returns the ready one, or else the newest.
func (c *cluster) pods(ctx context.Context) ([]corev1.Pod, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	list, err := c.client.CoreV1().Pods(c.namespace()).List(ctx, metav1.ListOptions{LabelSelector: c.selector})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		return p.Spec.NodeName == "" || len(c.nodes) > 0 && !slices.Contains(c.nodes, p.Spec.NodeName)
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), cmp.Compare(preference(b), preference(a)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	pods = slices.CompactFunc(pods, func(a, b corev1.Pod) bool { return a.Spec.NodeName == b.Spec.NodeName })
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod in namespace %s has the labels %s: set --namespace and --selector", c.namespace(), c.selector)
	}
	for _, node := range c.nodes {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node }) {
			return nil, fmt.Errorf("--nodes %s: the node has no pod of nodens", node)
		}
	}
	return pods, nil
}

// preference is higher for the pod that answers the node's queries.
func preference(p corev1.Pod) int {
	switch {
	case p.DeletionTimestamp != nil:
		return 0
	case slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}):
		return 2
	}
	return 1
}

// answer is the reply of a node, or the error instead.
type answer[T any] struct {
	Node, Pod string
	Value     T
	Err       error
}

// each calls ask for each pod, at most c.parallel at once and each for at most
// c.timeout. The answers have the order of the pods.
func each[T any](ctx context.Context, c *cluster, pods []corev1.Pod, ask func(context.Context, *corev1.Pod) (T, error)) []answer[T] {
	answers := make([]answer[T], len(pods))
	p := c.progress(len(pods))
	defer p.end()
	var group errgroup.Group
	group.SetLimit(c.parallel)
	for i := range pods {
		group.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no answer within %v (--node-timeout)", c.timeout))
			defer cancel()
			a := answer[T]{Node: pods[i].Spec.NodeName, Pod: pods[i].Name}
			a.Value, a.Err = ask(ctx, &pods[i])
			switch {
			case a.Err == nil || ctx.Err() == nil:
			case errors.Is(a.Err, ctx.Err()):
				a.Err = context.Cause(ctx)
			default:
				a.Err = fmt.Errorf("%w; %w", context.Cause(ctx), a.Err)
			}
			answers[i] = a
			p.add(a.Err)
			return nil
		})
	}
	_ = group.Wait()
	return answers
}

// progress shows on a terminal how many nodes have answered.
type progress struct {
	w          io.Writer // nil: no terminal
	mu         sync.Mutex
	all        int
	done, fail int
}

func (c *cluster) progress(all int) *progress {
	p := &progress{all: all}
	if top.IsTerminal(c.errs) {
		p.w = c.errs
	}
	p.print()
	return p
}

func (p *progress) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done++; err != nil {
		p.fail++
	}
	p.print()
}

// print writes the line. The lock is held.
func (p *progress) print() {
	if p.w != nil {
		fmt.Fprintf(p.w, "\r%d of %d answers, %d failed ", p.done, p.all, p.fail)
	}
}

// end clears the line.
func (p *progress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// failed returns the errors of the answers, with their nodes.
func failed[T any](answers []answer[T]) error {
	var errs []error
	for _, a := range answers {
		if a.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.Node, a.Err))
		}
	}
	return errors.Join(errs...)
}
