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

// redirects reports whether a container gets redirection. It cannot work for a pod
// outside of the host's network.
func (cfg *Config) redirects(c *container) bool {
	return cfg.Redirect != RedirectOff && c.hostNetwork()
}

// capabilities returns the capabilities that the container needs.
func (cfg *Config) capabilities(c *container) []string {
	add := []string{"NET_BIND_SERVICE"}
	if c.setsUp() || cfg.redirects(c) {
		add = []string{"NET_ADMIN", "NET_BIND_SERVICE"}
	}
	if cfg.redirects(c) {
		add = append(add, "BPF", "PERFMON")
		if cfg.Redirect == RedirectAuto { // its probe enters the namespaces of pods
			add = append(add, "SYS_ADMIN", "SYS_PTRACE")
		}
	}
	return add
}

// redirect gives the container the environment, mounts and settings that redirection
// needs.
func (m *migration) redirect(o *object, c *container) {
	if m.Redirect != RedirectOff && !c.hostNetwork() {
		m.lookAt("%s: gets no redirection, because it does not use the host's network", o)
	}
	if !m.redirects(c) {
		return
	}
	m.lookAt("%s: while nodens does not answer, pods query the upstreams of the cluster domain in the Corefile; to use the endpoints of CoreDNS instead, allow the service account to list and watch them (docs/upstreams.md) and set -endpoints-of if their Service is not kube-system/kube-dns, or set fallback in the redirect directive", o)
	if !slices.ContainsFunc(list(c.Node, "env"), func(n *yaml.Node) bool { return scalar(n, "name") == "NODE_IP" }) {
		push(c.Node, "env", pairs("name", "NODE_IP", "valueFrom", pairs("fieldRef", pairs("fieldPath", "status.hostIP"))))
	}
	mounted := c.hostMount("bpffs", "/sys/fs/bpf", "/sys/fs/bpf", false)
	mounted = c.hostMount("cgroup", "/sys/fs/cgroup", "/host/cgroup", true) || mounted
	if mounted {
		m.changed("%s: mounts the BPF file system and, read-only, the cgroups, for redirection", o)
	}
	if m.Redirect == RedirectAuto && set(c.pod, "hostPID", true) {
		m.changed("%s: sets hostPID, for the probe of redirect auto, which sends queries from the network of a pod", o)
	}
	if set(child(c.Node, "securityContext"), "appArmorProfile", pairs("type", "Unconfined")) {
		m.changed("%s: sets the AppArmor profile to Unconfined, because the default one forbids writing to the BPF file system", o)
		m.lookAt("%s: before Kubernetes 1.30, use this annotation instead of appArmorProfile: container.apparmor.security.beta.kubernetes.io/%s: unconfined", o, scalar(c.Node, "name"))
	}
}

// hostMount mounts a directory of the host and reports whether the mount was
// missing.
func (c *container) hostMount(name, path, at string, readOnly bool) bool {
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
