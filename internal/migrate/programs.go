package migrate

import (
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// programs looks at what the kubelet runs in the container: the image holds no
// program besides ours. A probe or a postStart that fails ends the container, a
// preStop that fails is passed over.
func (m *migration) programs(o *object, c *container) {
	for _, probe := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		if run, ok := foreign(find(c.Node, probe)); ok {
			m.refused("%s: %s runs %s, and the image holds no program but /nodens; ask /health by httpGet", o, probe, run)
		}
	}
	if run, ok := foreign(find(c.Node, "lifecycle", "postStart")); ok {
		m.refused("%s: postStart runs %s, and the image holds no program but /nodens", o, run)
	}
	hooks := find(c.Node, "lifecycle")
	run, ok := foreign(find(hooks, "preStop"))
	if !ok {
		return
	}
	if remove(hooks, "preStop"); len(hooks.Content) == 0 {
		remove(c.Node, "lifecycle")
	}
	m.changed("%s: preStop ran %s; it goes, since the image holds no program but /nodens: the new pod is ready before the old one is told to end, and lameduck of health is the time to go on for", o, run)
}

// foreign is the command of a probe or hook that is not ours.
func foreign(n *yaml.Node) (command string, ok bool) {
	words := texts(n, "exec", "command")
	if len(words) == 0 || path.Base(words[0]) == "nodens" {
		return "", false
	}
	return strings.Join(words, " "), true
}
