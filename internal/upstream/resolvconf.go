package upstream

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// ParseResolvConf reads the nameserver lines and the search list of a
// resolv.conf(5). Unlike libc it returns more than three nameservers. It ignores
// the lines that libc ignores. The last search or domain line counts. Search
// domains are returned as written.
//
// The error wraps ErrNoNameserver if there is no nameserver.
func ParseResolvConf(r io.Reader) (nameservers []netip.Addr, search []string, err error) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil && err != io.EOF {
			return nil, nil, fmt.Errorf("read resolv.conf: %w", err)
		}
		parseResolvLine(line, &nameservers, &search)
		if err == io.EOF {
			break
		}
	}
	if len(nameservers) == 0 {
		return nil, search, fmt.Errorf("resolv.conf: %w", ErrNoNameserver)
	}
	return nameservers, search, nil
}

// parseResolvLine reads one line. A keyword starts in the first column. # and ;
// begin a comment there, and anywhere in a nameserver line.
func parseResolvLine(line string, nameservers *[]netip.Addr, search *[]string) {
	if strings.IndexAny(line, " \t#;") == 0 {
		return
	}
	f := strings.Fields(line)
	if len(f) < 2 {
		return
	}
	switch f[0] {
	case "nameserver":
		text, _, _ := strings.Cut(f[1], "#")
		text, _, _ = strings.Cut(text, ";")
		if a, err := netip.ParseAddr(text); err == nil {
			*nameservers = append(*nameservers, a.Unmap())
		}
	case "domain":
		*search = f[1:2]
	case "search":
		*search = f[1:]
	}
}
