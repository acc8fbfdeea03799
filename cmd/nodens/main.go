// Command nodens is a DNS cache for the nodes of a Kubernetes cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	// An empty image has no CA certificates: without this forward to tls:// fails
	// there. Where the host has some, those are used.
	_ "golang.org/x/crypto/x509roots/fallback"
)

// env is the world that run works in.
type env struct {
	args           []string // without the program's name
	stdout, stderr io.Writer
	getenv         func(string) string
	// signals delivers SIGHUP and SIGUSR1: reload.
	signals <-chan os.Signal
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Who reads our log may go without taking the node's DNS along.
	signal.Ignore(syscall.SIGPIPE)
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP, syscall.SIGUSR1)
	var told exitStatus
	err := run(ctx, env{args: os.Args[1:], stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, signals: reload})
	switch {
	case err == nil:
	case errors.As(err, &told):
		os.Exit(int(told))
	case errors.Is(err, errUsage), errors.Is(err, errUnexamined):
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
