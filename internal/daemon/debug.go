package daemon

import (
	"net/http"
	"net/http/pprof"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/server"
)

// pprofEndpoints are the endpoints of the pprof directive.
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

func tcpTimeouts(t *config.Timeouts) server.TCPTimeouts {
	return server.TCPTimeouts{Read: t.Read, Idle: t.Idle, Write: t.Write, Queries: t.Queries}
}
