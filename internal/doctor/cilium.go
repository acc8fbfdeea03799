package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cilium holds the signs of Cilium on the node.
type cilium struct {
	signs   []string
	version version // zero: unknown
}

func (c cilium) found() bool { return len(c.signs) > 0 }

func (c cilium) String() string {
	v := "Cilium"
	if c.version != (version{}) {
		v += " " + c.version.String()
	}
	what := fmt.Sprintf("%s runs on this node (%s)", v, strings.Join(c.signs, ", "))
	if c.version.below(1, 18, 2) { // or unknown
		what += ", and seems to bypass the host's stack (BPF host routing)"
	}
	return what
}

// findCilium looks for Cilium's links, maps and programs, and queries its agent.
func (e *examination) findCilium(programs []string) cilium {
	var c cilium
	for _, l := range []string{"cilium_host", "cilium_net"} {
		if hasLink(l) {
			c.signs = append(c.signs, "link "+l)
		}
	}
	for _, dir := range []string{"fs/bpf/cilium", "fs/bpf/tc/globals/cilium_*"} {
		if p := filepath.Join(e.Sys, dir); exists(p) {
			c.signs = append(c.signs, p)
		}
	}
	if slices.ContainsFunc(programs, func(p string) bool { return strings.HasPrefix(p, "cil_") }) {
		c.signs = append(c.signs, "programs cil_*")
	}
	if v, ok := ciliumVersion(e.CiliumSocket, e.Timeout); ok {
		c.signs, c.version = append(c.signs, "its agent answers"), v
	}
	return c
}

// advice returns what to do if this version bypasses the host's stack.
func (c cilium) advice() string {
	const redirect = "Turn on socket redirection in nodens (redirect), which needs no change in Cilium."
	const legacy = " Or let Cilium route through the host's stack (bpf.hostLegacyRouting=true)"
	const policy = "This version delivers packets for the address to the host. Look for a policy that denies them, or use socket redirection (redirect)."
	switch v := c.version; {
	case v == version{}:
		return redirect + legacy + ", or upgrade to Cilium 1.19."
	case v.below(1, 17, 0):
		return redirect + legacy + ", or upgrade to Cilium 1.17 (address on a dummy link) or 1.18.2 (anywhere)."
	case v.below(1, 18, 2):
		return "Put the address on a dummy link, not on lo: Cilium 1.17.0 to 1.18.1 delivers packets only there. Or: " + redirect
	}
	return policy
}

// version is MAJOR.MINOR.PATCH.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

func (v version) below(major, minor, patch int) bool {
	return slices.Compare(v[:], []int{major, minor, patch}) < 0
}

var versionPattern = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\b`)

// ciliumVersion queries the agent's API on its unix socket. The reply of
// /v1/healthz contains text like "1.16.5 (v1.16.5-ad688277)".
func ciliumVersion(socket string, timeout time.Duration) (version, bool) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	r, err := client.Get("http://localhost/v1/healthz")
	if err != nil {
		return version{}, false
	}
	defer r.Body.Close()
	var status struct{ Cilium struct{ Msg string } }
	if json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&status) != nil {
		return version{}, false
	}
	return parseVersion(status.Cilium.Msg)
}

func parseVersion(text string) (v version, ok bool) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return v, false
	}
	for i := range v {
		v[i], _ = strconv.Atoi(m[i+1]) // digits, by the pattern
	}
	return v, true
}
