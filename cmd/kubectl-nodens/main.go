// Command kubectl-nodens is a kubectl plugin that shows nodens on all nodes of a
// cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodens-dns/nodens/internal/top"
)

var version = "devel" // set by the linker

// exitStatus is an error that only sets the exit status: stdout has the problems.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	runtime.ErrorHandlers = nil  // client-go logs streams that a timeout has closed
	err := newCommand(os.Stdout, os.Stderr).ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "error:", top.PrintableLines(err.Error()))
		os.Exit(2)
	}
}

// newCommand returns the root command.
func newCommand(out, errs io.Writer) *cobra.Command {
	c := &cluster{flags: genericclioptions.NewConfigFlags(true), out: out, errs: errs}
	root := &cobra.Command{
		Use:           "kubectl-nodens",
		Short:         "Show and test nodens, the DNS cache, on all nodes of a cluster",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodens"},
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errs)
	*c.flags.Namespace = "kube-system"
	fs := root.PersistentFlags()
	c.flags.AddFlags(fs)
	fs.StringVarP(&c.selector, "selector", "l", "app.kubernetes.io/name=nodens", "labels of nodens's pods and DaemonSet")
	fs.StringSliceVar(&c.nodes, "nodes", nil, "query only these nodes")
	fs.IntVar(&c.parallel, "parallel", 16, "query at most this number of nodes at once")
	fs.DurationVar(&c.timeout, "node-timeout", time.Minute, "timeout of one node")
	fs.StringVar(&c.via, "via", "auto", "how to reach nodens: exec (pods/exec), proxy (pods/proxy of the API server), or auto, which tries both")
	fs.StringVar(&c.tokenFile, "status-token-file", "", "file with the token of nodens's status address, for the proxy (default: the Secret that the pods mount)")
	root.AddCommand(statusCommand(c), doctorCommand(c), topCommand(c), testCommand(c), upgradeCommand(c))
	return root
}
