package migrate

import (
	"cmp"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// daemonSet migrates one container and the DaemonSet around it.
func (m *migration) daemonSet(o *object, c *container) {
	o.doc.edited = true
	m.apiVersion(o)
	args, liveness := slices.Clone(c.args), clone(child(c.Node, "livenessProbe"))
	other := m.image(o, c)
	m.command(o, c)
	if other && c.hostNetwork() && surges(o) {
		m.setupMetrics(o, c)
	}
	if other {
		m.statusAddress(o, c)
	}
	m.clients(o, c)
	ready := corefile{m, o, c}.migrate()
	m.probes(o, c, ready)
	m.programs(o, c)
	m.ports(o, c)
	m.privileges(o, c)
	m.redirect(o, c)
	m.lock(o, c)
	m.pidfile(o, c)
	m.strategy(o, c)
	m.grace(o, c)
	m.memory(o, c)
	m.stays(o, c, args, liveness)
}

// stays reports what has not changed. args and liveness are of the input.
func (m *migration) stays(o *object, c *container, args []string, liveness *yaml.Node) {
	var kept []string
	for i, a := range args {
		changes := func(i int) bool { return i < len(args) && !slices.Contains(c.args, args[i]) }
		if !changes(i) && !(strings.HasPrefix(a, "-") && changes(i+1)) {
			kept = append(kept, a)
		}
	}
	if len(kept) > 0 {
		m.same("%s: arguments %s", o, strings.Join(kept, " "))
	}
	if liveness != nil && equal(liveness, child(c.Node, "livenessProbe")) {
		m.same("%s: livenessProbe", o)
	}
	m.same("%s: name, labels, selector, service account, tolerations, resources, metrics port and the mounted ConfigMaps", o)
	if len(list(c.pod, "containers"))+len(list(c.pod, "initContainers")) > 1 {
		m.lookAt("%s: its other containers were not changed", o)
	}
}

// image sets the image and reports whether it was different.
func (m *migration) image(o *object, c *container) bool {
	old := scalar(c.Node, "image")
	if !set(c.Node, "image", m.Image) {
		return false
	}
	m.changed("%s: image %s becomes %s", o, old, m.Image)
	return true
}

// setupMetrics adds 2 to the port of -metrics-listen-address, and 2 more for a further
// nodens on the node: node-cache listens on its port without SO_REUSEPORT, and nodens
// starts beside node-cache. The ports between are those of the status addresses.
func (m *migration) setupMetrics(o *object, c *container) {
	const name = "metrics-listen-address"
	old, given := c.flag(name)
	if !given {
		old = "0.0.0.0:9353"
	}
	host, port, err := net.SplitHostPort(old)
	n, nerr := strconv.ParseUint(port, 10, 16)
	if err != nil || nerr != nil {
		return // 0: off
	}
	moved := net.JoinHostPort(host, strconv.FormatUint(n+2+2*uint64(c.rank), 10))
	c.setFlag(name, moved)
	m.changed("%s: -%s becomes %s: node-cache does not share its port %s, and the new pod starts beside it", o, name, moved, port)
}

// statusAddress gives a further nodens on the node its own status address.
func (m *migration) statusAddress(o *object, c *container) {
	const name = "status-address"
	if _, given := c.flag(name); given || c.rank == 0 {
		return
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(9354+2*c.rank))
	c.setFlag(name, addr)
	m.changed("%s: -%s becomes %s: an earlier DaemonSet may run on the same node and has the default", o, name, addr)
}

// command removes the command: the image has its own.
func (m *migration) command(o *object, c *container) {
	if remove(c.Node, "command") {
		set(c.Node, "args", c.args)
		m.changed("%s: command is removed, because the image has its own; its arguments move to args", o)
	}
	if slices.ContainsFunc(c.args, func(a string) bool { return strings.Contains(a, "__PILLAR__") }) {
		m.lookAt("%s: its arguments have placeholders (__PILLAR__…); replace them as for node-cache", o)
	}
}

// clients accepts clients that use the default route: in a pod's own network these
// are all pods, and the daemon would refuse them as outside the node.
func (m *migration) clients(o *object, c *container) {
	if _, given := c.flag("clients"); given || c.hostNetwork() {
		return
	}
	c.setFlag("clients", "all")
	m.changed("%s: -clients becomes all: in a pod's own network the default route leads to every client, and nodens refuses such clients otherwise", o)
}

// ports removes the declared ports: in the host's network they are host ports, and
// no second pod can be scheduled beside the first.
func (m *migration) ports(o *object, c *container) {
	if !c.hostNetwork() || child(c.Node, "ports") == nil || !surges(o) {
		return
	}
	numbers := make(map[string]string)
	for _, p := range list(c.Node, "ports") {
		numbers[scalar(p, "name")] = scalar(p, "containerPort")
	}
	remove(c.Node, "ports")
	m.changed("%s: ports are removed: with hostNetwork they are host ports, and the new pod of an upgrade could not be scheduled beside the old one", o)
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		get := find(c.Node, probe, "httpGet")
		if n, ok := numbers[scalar(get, "port")]; ok && n != "" {
			set(get, "port", number(n))
			m.changed("%s: %s uses port %s by number", o, probe, n)
		}
	}
	m.targetPorts(o, numbers)
}

// targetPorts replaces port names in Services by numbers: the pods declare no ports.
func (m *migration) targetPorts(ds *object, numbers map[string]string) {
	labels := find(ds.Node, "spec", "template", "metadata", "labels")
	for _, s := range m.objects("Service") {
		if !selects(find(s.Node, "spec", "selector"), labels) || cmp.Or(s.namespace, "default") != cmp.Or(ds.namespace, "default") {
			continue
		}
		for _, p := range list(s.Node, "spec", "ports") {
			if n := numbers[scalar(p, "targetPort")]; n != "" {
				set(p, "targetPort", number(n))
				s.doc.edited = true
				m.changed("%s: targetPort becomes %s, because the pod declares no ports", s, n)
			}
		}
	}
	for _, o := range m.objects("PodMonitor") {
		m.lookAt("%s: it uses port names, and the pods declare no ports; use portNumber", o)
	}
}

// selects reports whether a selector matches labels.
func selects(selector, labels *yaml.Node) bool {
	if selector == nil || len(selector.Content) == 0 {
		return false
	}
	for i := 0; i+1 < len(selector.Content); i += 2 {
		if scalar(labels, selector.Content[i].Value) != selector.Content[i+1].Value {
			return false
		}
	}
	return true
}

func number(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: s} }

// privileges grants the capabilities that nodens needs, and removes all others.
func (m *migration) privileges(o *object, c *container) {
	was := "the security context"
	if scalar(c.Node, "securityContext", "privileged") == "true" {
		was = "privileged"
	}
	context := child(c.Node, "securityContext")
	if context == nil {
		context = pairs()
	}
	add := m.capabilities(c)
	for _, a := range texts(context, "capabilities", "add") {
		if a = strings.TrimPrefix(a, "CAP_"); !slices.Contains(add, a) {
			add = append(add, a)
		}
	}
	changed := remove(context, "privileged")
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"allowPrivilegeEscalation", false},
		{"readOnlyRootFilesystem", true},
		{"runAsUser", 0},
		{"capabilities", pairs("drop", []string{"ALL"}, "add", add)},
	} {
		changed = set(context, kv.key, kv.value) || changed
	}
	set(c.Node, "securityContext", context)
	if scalar(context, "runAsNonRoot") == "true" || scalar(c.pod, "securityContext", "runAsNonRoot") == "true" {
		m.lookAt("%s: remove runAsNonRoot: the capabilities need runAsUser 0", o)
	}
	if changed {
		m.changed("%s: %s becomes the capabilities %s and a read-only root file system", o, was, strings.Join(add, ", "))
	}
}

// memory says what follows without a memory limit.
func (m *migration) memory(o *object, c *container) {
	if scalar(c.Node, "resources", "limits", "memory") == "" {
		m.lookAt("%s: has no memory limit, so the cache takes up to 64 MiB and up to 16384 lookups are in flight; set resources.limits.memory, for example to 128Mi, and nodens fits itself into it", o)
	}
}

// lock removes the mount of the iptables lock: nodens does not run iptables.
func (m *migration) lock(o *object, c *container) {
	var gone []string
	drop(c.Node, "volumeMounts", func(n *yaml.Node) bool {
		if path.Base(scalar(n, "mountPath")) != "xtables.lock" {
			return false
		}
		gone = append(gone, scalar(n, "name"))
		return true
	})
	drop(c.pod, "volumes", func(n *yaml.Node) bool { return slices.Contains(gone, scalar(n, "name")) && !c.mounted(n) })
	if len(gone) > 0 {
		m.changed("%s: the mount of xtables.lock is removed: nodens does not run iptables", o)
	}
}

// mounted reports whether any container of the pod mounts a volume.
func (c *container) mounted(volume *yaml.Node) bool {
	for _, key := range []string{"containers", "initContainers"} {
		for _, other := range list(c.pod, key) {
			for _, mount := range list(other, "volumeMounts") {
				if scalar(mount, "name") == scalar(volume, "name") {
					return true
				}
			}
		}
	}
	return false
}

// drop removes items from the list at a key, and the key if the list becomes empty.
func drop(n *yaml.Node, key string, unwanted func(*yaml.Node) bool) {
	l := child(n, key)
	if l == nil {
		return
	}
	l.Content = slices.DeleteFunc(l.Content, unwanted)
	if len(l.Content) == 0 {
		remove(n, key)
	}
}

// pidfile mounts a volume for the PID file: the root file system of the image is
// read-only.
func (m *migration) pidfile(o *object, c *container) {
	name, ok := c.flag("pidfile")
	if !ok || name == "" {
		return
	}
	dir := path.Dir(name)
	for _, mount := range list(c.Node, "volumeMounts") {
		at := path.Clean(scalar(mount, "mountPath"))
		if (dir == at || strings.HasPrefix(dir, at+"/")) && scalar(mount, "readOnly") != "true" {
			return
		}
	}
	const volume = "nodens-pidfile"
	push(c.Node, "volumeMounts", pairs("name", volume, "mountPath", dir))
	push(c.pod, "volumes", pairs("name", volume, "emptyDir", pairs()))
	m.changed("%s: an emptyDir volume at %s for the PID file, because the root file system is read-only", o, dir)
}

// push appends an item to the list at a key.
func push(n *yaml.Node, key string, item *yaml.Node) {
	l := child(n, key)
	if l == nil {
		l = &yaml.Node{Kind: yaml.SequenceNode}
		set(n, key, l)
	}
	l.Content = append(l.Content, item)
}

// surges reports whether an update starts the new pod beside the old one.
func surges(o *object) bool {
	return scalar(o.Node, "spec", "updateStrategy", "type") != "OnDelete"
}

// apiVersion sets the version that Kubernetes still serves, and that has maxSurge.
func (m *migration) apiVersion(o *object) {
	if old := scalar(o.Node, "apiVersion"); set(o.Node, "apiVersion", "apps/v1") {
		m.changed("%s: apiVersion %s becomes apps/v1, the only one since Kubernetes 1.16", o, old)
		if find(o.Node, "spec", "selector") == nil {
			m.refused("%s: apps/v1 requires spec.selector; set its matchLabels to the labels of the pods", o)
		}
	}
}

// strategy makes an update start the new pod beside the old one.
func (m *migration) strategy(o *object, c *container) {
	spec := find(o.Node, "spec")
	if !surges(o) {
		m.lookAt("%s: updateStrategy OnDelete stays: a pod that you delete is replaced after it has ended", o)
		return
	}
	if set(spec, "updateStrategy", pairs("type", "RollingUpdate", "rollingUpdate", pairs("maxSurge", 1, "maxUnavailable", 0))) {
		share := ""
		if c.hostNetwork() {
			share = "; both share the ports"
		}
		m.changed("%s: updateStrategy starts the new pod beside the old one (maxSurge 1, maxUnavailable 0)%s", o, share)
	}
}

// grace gives the pod time to answer queries in flight.
func (m *migration) grace(o *object, c *container) {
	n := child(c.pod, "terminationGracePeriodSeconds")
	if n != nil && len(n.Value) < 2 && n.Value < "9" {
		set(c.pod, "terminationGracePeriodSeconds", 30)
		m.changed("%s: terminationGracePeriodSeconds %s becomes 30: nodens answers queries in flight before it exits", o, n.Value)
	}
}
