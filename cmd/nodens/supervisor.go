package main

import (
	"fmt"

	"github.com/nodens-dns/nodens/internal/config"
)

// exitStatus is the exit status of the worker, which has logged the error.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// supervised reports whether the daemon runs in a child process. By default it does
// if sockets may be redirected, because only then do clients wait after the daemon
// dies. The daemon reports the error if the Corefile cannot be read.
func (f *flags) supervised() bool {
	if f.supervise != nil {
		return *f.supervise
	}
	cfg, err := f.ReadCorefile(func(error) {})
	return err == nil && cfg.Redirect().Mode != config.RedirectOff
}
