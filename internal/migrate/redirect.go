package migrate

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Modes of Config.Redirect.
const (
	RedirectOff  = ""
	RedirectAuto = "auto"
	RedirectOn   = "on"
)

// redirects tells whether a container is to have redirection. Where it is not in
// the host's network another redirection leads to it, and ours cannot work.
func (m *migration) redirects(c *container) bool { return m.Redirect != RedirectOff && c.hostNetwork() }

// capabilities lists what the container needs.
func (m *migration) capabilities(c *container) []string {
	add := []string{"NET_BIND_SERVICE"}
	if c.setsUp() || m.redirects(c) {
		add = []string{"NET_ADMIN", "NET_BIND_SERVICE"}
	}
	if m.redirects(c) {
		add = append(add, "BPF", "PERFMON")
		if m.Redirect == RedirectAuto { // its probe enters a pod's namespace
			add = append(add, "SYS_ADMIN", "SYS_PTRACE")
		}
	}
	return add
}

// redirect gives the container what redirection of sockets takes.
func (m *migration) redirect(o *object, c *container) {
	if m.Redirect != RedirectOff && !c.hostNetwork() {
		m.lookAt("%s: is not in the host's network, and was not given redirection", o)
	}
	if !m.redirects(c) {
		return
	}
	m.lookAt("%s: while nodens does not answer, pods ask the upstreams of the cluster domain that the Corefile has; for CoreDNS's endpoints let its service account list and watch them, and name their Service by -endpoints-of if that is not kube-system/kube-dns (docs/apiserver.md), or give the redirect directive a fallback", o)
	if !slices.ContainsFunc(list(c.Node, "env"), func(n *yaml.Node) bool { return scalar(n, "name") == "NODE_IP" }) {
		push(c.Node, "env", pairs("name", "NODE_IP", "valueFrom", pairs("fieldRef", pairs("fieldPath", "status.hostIP"))))
	}
	mounted := m.hostMount(c, "bpffs", "/sys/fs/bpf", "/sys/fs/bpf", false)
	mounted = m.hostMount(c, "cgroup", "/sys/fs/cgroup", "/host/cgroup", true) || mounted
	if mounted {
		m.changed("%s: the BPF file system and, read-only, the cgroups are mounted, for redirection", o)
	}
	if m.Redirect == RedirectAuto && set(c.pod, "hostPID", true) {
		m.changed("%s: hostPID, for the probe of auto, which looks from a pod's network", o)
	}
	if set(child(c.Node, "securityContext"), "appArmorProfile", pairs("type", "Unconfined")) {
		m.changed("%s: no AppArmor profile, since the default one lets nobody write to the BPF file system", o)
		m.lookAt("%s: before Kubernetes 1.30 an annotation says that: container.apparmor.security.beta.kubernetes.io/%s: unconfined", o, scalar(c.Node, "name"))
	}
}

// hostMount mounts a directory of the host and reports whether that was missing.
func (m *migration) hostMount(c *container, name, path, at string, readOnly bool) bool {
	i := slices.IndexFunc(list(c.pod, "volumes"), func(n *yaml.Node) bool {
		return strings.TrimSuffix(scalar(n, "hostPath", "path"), "/") == path
	})
	if i < 0 {
		push(c.pod, "volumes", pairs("name", name, "hostPath", pairs("path", path, "type", "Directory")))
	} else {
		name = scalar(list(c.pod, "volumes")[i], "name")
	}
	if slices.ContainsFunc(list(c.Node, "volumeMounts"), func(n *yaml.Node) bool { return scalar(n, "name") == name }) {
		return false
	}
	mount := pairs("name", name, "mountPath", at)
	if readOnly {
		set(mount, "readOnly", true)
	}
	push(c.Node, "volumeMounts", mount)
	return true
}
