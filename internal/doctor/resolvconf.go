package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// resolvConf holds the nameservers and the search list of a resolv.conf(5).
type resolvConf struct {
	servers []netip.Addr
	search  []string
}

// parseResolvConf ignores the lines that libc ignores.
func parseResolvConf(text string) resolvConf {
	var c resolvConf
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(f[1]); err == nil {
				c.servers = append(c.servers, a.Unmap())
			}
		case "domain":
			c.search = domains(f[1:2])
		case "search":
			c.search = domains(f[1:])
		}
	}
	return c
}

// domains returns the words that are domain names of printable ASCII. A pod, which
// is not trusted, may have written the file.
func domains(words []string) []string {
	var all []string
	for _, w := range words {
		unprintable := strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || r > '~' })
		if _, ok := dns.IsDomainName(w); ok && !unprintable {
			all = append(all, w)
		}
	}
	return all
}

// systemdResolved is the file with the upstreams of systemd-resolved's stub.
const systemdResolved = "/run/systemd/resolve/resolv.conf"

// stubUpstreams returns the upstreams of systemd-resolved's stub, or none.
func stubUpstreams() []netip.Addr {
	text, _ := os.ReadFile(systemdResolved)
	return parseResolvConf(string(text)).servers
}

// resolvConfExamination examines one file.
type resolvConfExamination struct {
	*examination
	at        string // where the file is named, for display
	forwarded bool   // a forward directive reads it
}

// resolvConfs reads and checks the node's resolv.conf and those that forwards
// name.
func (e *examination) resolvConfs() map[string]resolvConf {
	files := make(map[string]resolvConf)
	wanted := map[string]string{e.ResolvConf: ""}
	for _, f := range e.Forwards {
		for _, path := range f.Files {
			wanted[path] = f.Where
		}
	}
	for path, where := range wanted {
		text, err := os.ReadFile(path)
		if err != nil && (where != "" || !errors.Is(err, fs.ErrNotExist)) {
			e.unexamined(err.Error())
			continue
		}
		files[path] = parseResolvConf(string(text))
		r := resolvConfExamination{e, path, where != ""}
		if r.forwarded {
			r.at = where + ": " + path
		}
		r.examine(files[path])
	}
	e.conf = files[e.ResolvConf]
	if real := stubUpstreams(); len(real) > 0 && !slices.ContainsFunc(e.conf.servers, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		e.conf.servers = real // the kubelet gives them to pods
	}
	return files
}

func (e resolvConfExamination) examine(c resolvConf) {
	if len(c.servers) == 0 && e.forwarded {
		e.find(nodeView, "resolv-empty", e.at+" names no server")
	}
	own := 0
	for _, a := range c.servers {
		switch {
		case e.own(netip.AddrPortFrom(a, 53)):
			own++
		case a.IsLoopback() && e.forwarded:
			e.checkStub(a)
		}
	}
	if own > 0 && own == len(c.servers) && e.forwarded {
		e.find(nodeView, "forward-loop", fmt.Sprintf("%s names only nodens itself", e.at))
	}
}

// checkStub checks a loopback resolver that is an upstream.
func (e resolvConfExamination) checkStub(stub netip.Addr) {
	for _, a := range stubUpstreams() {
		if e.own(netip.AddrPortFrom(a, 53)) {
			e.find(nodeView, "forward-loop", fmt.Sprintf("%s names %s, which forwards to %s, nodens itself (%s)", e.at, stub, a, systemdResolved))
			return
		}
	}
	e.find(nodeView, "resolv-stub", fmt.Sprintf("%s names %s", e.at, stub))
}

// isDialError reports whether no connection was established.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
