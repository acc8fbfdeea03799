package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/miekg/dns"
)

// resolvConf is what counts of a resolv.conf(5).
type resolvConf struct {
	servers []netip.Addr
	search  []string
}

// parseResolvConf reads a file as libc does: lines that it ignores are ignored.
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

// domains are the words that are names and can be printed: the file may be a
// pod's.
func domains(words []string) []string {
	var all []string
	for _, w := range words {
		strange := strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || r > '~' })
		if _, ok := dns.IsDomainName(w); ok && !strange {
			all = append(all, w)
		}
	}
	return all
}

// systemdResolved is where systemd-resolved keeps the servers that its stub
// asks.
const systemdResolved = "/run/systemd/resolve/resolv.conf"

// resolvConfs reads the node's resolv.conf and those that forwards name, and
// judges them.
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
		e.judgeResolvConf(path, where, files[path])
	}
	e.search = files[e.ResolvConf].search
	return files
}

// judgeResolvConf looks at a file; where is the forward that reads it, "" if
// none does.
func (e *examination) judgeResolvConf(path, where string, c resolvConf) {
	at := path
	if where != "" {
		at = where + ": " + path
	}
	if len(c.servers) == 0 && where != "" {
		e.find(nodeView, "resolv-empty", at+" names no server")
	}
	own := 0
	for _, a := range c.servers {
		switch {
		case e.own(netip.AddrPortFrom(a, 53)):
			own++
		case a.IsLoopback() && where != "":
			e.judgeStub(at, a)
		}
	}
	if own > 0 && own == len(c.servers) && where != "" {
		e.find(nodeView, "forward-loop", fmt.Sprintf("%s names no server but the daemon itself", at))
	}
}

// judgeStub looks at a loopback resolver that is forwarded to.
func (e *examination) judgeStub(at string, stub netip.Addr) {
	text, err := os.ReadFile(systemdResolved)
	if err == nil {
		for _, a := range parseResolvConf(string(text)).servers {
			if e.own(netip.AddrPortFrom(a, 53)) {
				e.find(nodeView, "forward-loop", fmt.Sprintf("%s names %s, which asks %s, the daemon itself (%s)", at, stub, a, systemdResolved))
				return
			}
		}
	}
	e.find(nodeView, "resolv-stub", fmt.Sprintf("%s names %s", at, stub))
}

// isDialError tells that no connection came about.
func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
