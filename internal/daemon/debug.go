package daemon

import (
	"log/slog"
	"net/http"
	"net/http/pprof"
	"runtime"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// pprofEndpoints are what the pprof directive offers.
func pprofEndpoints(addr string) []endpoint {
	const root = "/debug/pprof/"
	return []endpoint{
		{addr: addr, path: root, handler: http.HandlerFunc(pprof.Index)},
		{addr: addr, path: root + "cmdline", handler: http.HandlerFunc(pprof.Cmdline)},
		{addr: addr, path: root + "profile", handler: http.HandlerFunc(pprof.Profile)},
		{addr: addr, path: root + "symbol", handler: http.HandlerFunc(pprof.Symbol)},
		{addr: addr, path: root + "trace", handler: http.HandlerFunc(pprof.Trace)},
	}
}

// examine makes the process log and profile as much as a asks for.
func (d *daemon) examine(a *app) {
	d.level.Set(d.levelOf(a.debug))
	runtime.SetBlockProfileRate(a.blockRate)
}

// levelOf is what the log holds at least.
func (d *daemon) levelOf(debug bool) slog.Level {
	switch {
	case debug:
		return slog.LevelDebug
	case d.opts.Quiet:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

func tcpTimeouts(t *config.Timeouts) server.TCPTimeouts {
	return server.TCPTimeouts{Read: t.Read, Idle: t.Idle, Write: t.Write, Queries: t.Queries}
}
