package migrate

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readyPort is the default port of the ready directive.
const readyPort = 8181

// corefile migrates the Corefile of a container.
type corefile struct {
	*migration
	o *object
	c *container
}

// migrate checks the Corefile and adds the directives ready and redirect to it. It
// returns the address of ready, host:port, or "".
func (m corefile) migrate() (ready string) {
	start := Start{Args: m.c.expanded(), Env: m.c.env}
	if !m.check(start, m.o.String()) { // the flags alone
		return ""
	}
	var n *yaml.Node
	var holder *object
	s, base, _ := m.c.corefile(func(s source) bool {
		if holder = m.object("ConfigMap", m.o.namespace, s.configMap); holder != nil {
			n = find(holder.Node, "data", s.key)
		}
		return n != nil
	})
	if n == nil {
		add := "a ready directive"
		if m.redirects(m.c) {
			add += " and redirect " + m.Redirect
		}
		m.lookAt("%s: the Corefile is not in these manifests; check it with nodens check, and add %s to it", m.o, add)
		return ""
	}
	start.Name, start.Corefile, start.Base = s.key, n.Value, base
	if !m.check(start, holder.String()) {
		return ""
	}
	if unseen := wildcards(n.Value); len(unseen) > 0 {
		m.lookAt("%s: it imports %s, and migrate did not see such files; check them with nodens check on a node", holder, strings.Join(unseen, " and "))
	}
	text, ready, added := withReady(n.Value, m.c)
	full, redirected := m.withRedirect(text)
	start.Corefile = full
	if _, ok := m.refuses(start, holder.String()); !ok {
		return ""
	}
	if added {
		patchScalar(holder.doc, n, text)
		m.changed("%s: the Corefile gets ready %s, for the readiness probe", holder, ready)
	}
	if redirected {
		patchScalar(holder.doc, n, full)
		m.changed("%s: the Corefile gets redirect %s: sockets of pods are redirected to nodens, and to CoreDNS while nodens does not answer; remove the line before you go back to node-cache, which does not know it", holder, m.Redirect)
	}
	if (added || redirected) && scalar(holder.Node, "immutable") == "true" {
		m.lookAt("%s: it is immutable, so Kubernetes refuses the change; give it a new name, here and in the volume of the %s", holder, m.o)
	}
	placeholders := ""
	if base && strings.Contains(n.Value, "__PILLAR__") {
		placeholders = ", and replaces its placeholders as node-cache does"
	}
	m.same("%s: nodens accepts the Corefile%s", holder, placeholders)
	return ready
}

// check reports the errors and warnings of the daemon.
func (m corefile) check(s Start, where string) bool {
	warnings, ok := m.refuses(s, where)
	for _, w := range warnings {
		m.lookAt("%s: %v", where, w)
	}
	return ok
}

// refuses reports the errors of the daemon and returns its warnings. ok is false if
// there are errors.
func (m corefile) refuses(s Start, where string) (warnings []error, ok bool) {
	if m.Check == nil {
		return nil, true
	}
	warnings, err := m.Check(s)
	if err == nil {
		return warnings, true
	}
	for line := range strings.Lines(err.Error()) {
		m.refused("%s: %s%s", where, strings.TrimSpace(line), importHint(line))
	}
	return warnings, false
}

// wildcards returns the import patterns of a Corefile that may match no file.
func wildcards(text string) (patterns []string) {
	for line := range strings.Lines(text) {
		if f := directive(line); len(f) == 2 && f[0] == "import" && strings.ContainsAny(f[1], "*?") {
			patterns = append(patterns, f[1])
		}
	}
	return patterns
}

// importHint says what to do about an imported file that the manifests do not have.
func importHint(line string) string {
	if !strings.Contains(line, ": import: cannot read ") {
		return ""
	}
	return "; if another container makes the file on the node, use -assume-imports"
}

// withReady adds a ready directive before the health directive, with its host, or
// else in the first block. It returns the address. Without hostNetwork it has no host:
// the kubelet reaches only the pod's own address.
func withReady(text string, c *container) (out, ready string, added bool) {
	lines := strings.SplitAfter(text, "\n")
	for _, l := range lines {
		if f := directive(l); len(f) > 0 && f[0] == "ready" {
			return text, argument(f, ":"+strconv.Itoa(readyPort)), false
		}
	}
	at, indent, host := -1, "    ", ""
	for i, l := range lines {
		f := directive(l)
		switch {
		case len(f) > 0 && f[0] == "health":
			host, _, _ = net.SplitHostPort(argument(f, ":8080"))
			at, indent = i, l[:len(l)-len(strings.TrimLeft(l, " \t"))]
		case at < 0 && len(f) > 1 && f[len(f)-1] == "{" && !strings.HasPrefix(f[0], "("):
			at = i + 1
			local, _ := c.flag("localip")
			host, _, _ = strings.Cut(local, ",")
		}
		if len(f) > 0 && f[0] == "health" {
			break
		}
	}
	if at < 0 {
		return text, "", false
	}
	if !c.hostNetwork() {
		host = ""
	}
	ready = net.JoinHostPort(host, strconv.Itoa(readyPort+c.rank))
	lines = slices.Insert(lines, at, indent+"ready "+ready+"\n")
	return strings.Join(lines, ""), ready, true
}

// withRedirect adds a redirect directive to the first server block, unless the text
// has one or the container gets no redirection.
func (m corefile) withRedirect(text string) (out string, added bool) {
	if !m.redirects(m.c) {
		return text, false
	}
	lines := strings.SplitAfter(text, "\n")
	at, depth := -1, 0
	for i, l := range lines {
		f := directive(l)
		switch {
		case len(f) == 0:
		case f[0] == "redirect":
			return text, false
		case f[0] == "}":
			depth--
		case f[len(f)-1] == "{":
			if at < 0 && depth == 0 && !strings.HasPrefix(f[0], "(") {
				at = i + 1
			}
			depth++
		}
	}
	if at < 0 {
		m.lookAt("add redirect %s to the Corefile: nodens migrate needs a server block in braces", m.Redirect)
		return text, false
	}
	return strings.Join(slices.Insert(lines, at, "    redirect "+m.Redirect+"\n"), ""), true
}

// directive returns the words of a line without its comment.
func directive(line string) []string {
	code, _, _ := strings.Cut(line, "#")
	return strings.Fields(code)
}

// argument returns the first argument of a directive, or otherwise.
func argument(words []string, otherwise string) string {
	if len(words) > 1 && words[1] != "{" {
		return words[1]
	}
	return otherwise
}

// patchScalar sets n to text, which has one line more. If n is a literal block, the
// line is inserted into the source, and nothing else of the document changes.
func patchScalar(d *document, n *yaml.Node, text string) {
	old, lines := strings.SplitAfter(n.Value, "\n"), strings.SplitAfter(text, "\n")
	first := slices.IndexFunc(lines, func(l string) bool { return !slices.Contains(old, l) })
	n.Value = text
	source := strings.SplitAfter(d.text, "\n")
	at := n.Line + 1 + first - d.first + d.insertedAbove(n) // n.Line is that of the "|"
	if d.edited || n.Style&yaml.LiteralStyle == 0 || first < 0 || first >= len(old) || at >= len(source) ||
		strings.TrimSpace(source[at]) != strings.TrimSpace(old[first]) {
		d.edited = true
		asBlock(n)
		return
	}
	indent := source[at][:strings.Index(source[at], strings.TrimLeft(old[first], " \t"))]
	margin := len(old[first]) - len(strings.TrimLeft(old[first], " \t"))
	d.text = strings.Join(slices.Insert(source, at, indent[:len(indent)-margin]+lines[first]), "")
	d.inserted = append(d.inserted, n)
}

// asBlock makes the encoder print n as a literal block, which cannot have spaces at the
// end of a line.
func asBlock(n *yaml.Node) {
	lines := strings.Split(n.Value, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\r")
	}
	n.Value, n.Style = strings.Join(lines, "\n"), yaml.LiteralStyle
}

// probeHosts removes the address 0.0.0.0 or :: from probes. To the kubelet it means the
// node, not the pod.
func (m *migration) probeHosts(o *object, c *container) {
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		get := find(c.Node, probe, "httpGet")
		if host := scalar(get, "host"); host != "" && unspecified(host) {
			remove(get, "host")
			m.changed("%s: host %s is removed from %s: the kubelet then probes the pod's address", o, host, probe)
		}
	}
}

// unspecified reports whether host names no address: it is empty or a wildcard.
func unspecified(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }

// probes makes the pod ready once nodens has answered its own query, and not ready
// from SIGTERM on.
func (m *migration) probes(o *object, c *container, ready string) {
	m.probeHosts(o, c)
	if ready == "" {
		return
	}
	host, port, err := net.SplitHostPort(ready)
	if err != nil {
		return
	}
	get := pairs("path", "/ready", "port", number(port))
	if h := scalar(c.Node, "livenessProbe", "httpGet", "host"); h != "" && c.hostNetwork() {
		host = h
	}
	if host = c.literal(host); !unspecified(host) {
		get.Content = append([]*yaml.Node{node("host"), node(host)}, get.Content...)
	}
	probe := child(c.Node, "readinessProbe")
	if probe == nil || probe.Kind != yaml.MappingNode {
		probe = pairs("httpGet", get, "periodSeconds", 5)
	} else if old := find(probe, "httpGet"); old != nil && scalar(old, "path") == "/ready" {
		return
	} else {
		for _, other := range []string{"exec", "tcpSocket", "grpc"} { // a probe has one handler
			remove(probe, other)
		}
		set(probe, "httpGet", get)
	}
	set(c.Node, "readinessProbe", probe)
	m.changed("%s: readinessProbe gets /ready on port %s: 200 once nodens has answered its own query, until SIGTERM", o, port)
}
