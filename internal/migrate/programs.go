package migrate

import (
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// programs finds commands that the kubelet runs in the container: the image has no
// program except nodens. A failed probe or postStart ends the container; the kubelet
// ignores a failed preStop.
func (m *migration) programs(o *object, c *container) {
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		if run, ok := foreign(find(c.Node, probe)); ok {
			m.refused("%s: %s runs %s, but the image has no program except /nodens; use httpGet with /health", o, probe, run)
		}
	}
	if run, ok := foreign(find(c.Node, "lifecycle", "postStart")); ok {
		m.refused("%s: postStart runs %s, but the image has no program except /nodens", o, run)
	}
	hooks := find(c.Node, "lifecycle")
	run, ok := foreign(find(hooks, "preStop"))
	if !ok {
		return
	}
	if remove(hooks, "preStop"); len(hooks.Content) == 0 {
		remove(c.Node, "lifecycle")
	}
	m.changed("%s: preStop (%s) is removed, because the image has no program except /nodens; to delay the exit, set lameduck in the health directive", o, run)
}

// foreign returns the command of a probe or hook, unless it is nodens.
func foreign(n *yaml.Node) (command string, ok bool) {
	words := texts(n, "exec", "command")
	if len(words) == 0 || path.Base(words[0]) == "nodens" {
		return "", false
	}
	return strings.Join(words, " "), true
}
