package migrate

import (
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// container is a container of node-cache.
type container struct {
	*yaml.Node
	pod  *yaml.Node // the pod's spec
	args []string
	env  map[string]string
	rank int // number of earlier containers that may run on the same node's network
}

// nodeCaches finds the containers of node-cache in a DaemonSet. earlier are those of the
// DaemonSets before it.
func nodeCaches(o *object, earlier []*container) []*container {
	pod := find(o.Node, "spec", "template", "spec")
	var found []*container
	for _, n := range list(pod, "containers") {
		c := &container{
			Node: n, pod: pod, args: slices.Concat(texts(n, "command"), texts(n, "args")), env: envOf(n),
			rank: rank(pod, earlier),
		}
		if len(c.args) > 0 && !strings.HasPrefix(c.args[0], "-") {
			c.args = c.args[1:] // the program
		}
		_, local := c.flag("localip")
		if local || strings.Contains(scalar(n, "image"), "node-cache") {
			found = append(found, c)
		}
	}
	return found
}

// rank returns how many of the earlier containers may run on a node of this pod, on the
// node's network.
func rank(pod *yaml.Node, earlier []*container) (n int) {
	for _, e := range earlier {
		if e.hostNetwork() && scalar(pod, "hostNetwork") == "true" &&
			equal(child(e.pod, "nodeSelector"), child(pod, "nodeSelector")) && equal(child(e.pod, "affinity"), child(pod, "affinity")) {
			n++
		}
	}
	return n
}

// envOf returns the variables of a container. Values that the kubelet fills in are
// replaced by an example address.
func envOf(n *yaml.Node) map[string]string {
	env := make(map[string]string)
	for _, e := range list(n, "env") {
		value := scalar(e, "value")
		if child(e, "valueFrom") != nil {
			value = exampleIP
		}
		env[scalar(e, "name")] = value
	}
	return env
}

// Example values for values that only the node knows.
const (
	exampleIP      = "192.0.2.1"
	exampleLocal   = "169.254.20.10"
	exampleService = "10.96.0.10"
)

// flag returns the value of a flag, in any syntax of Go's flag package.
func (c *container) flag(name string) (value string, ok bool) {
	for i, a := range c.args {
		a, dashed := strings.CutPrefix(a, "-")
		a = strings.TrimPrefix(a, "-")
		key, value, inline := strings.Cut(a, "=")
		switch {
		case !dashed || key != name:
		case inline:
			return value, true
		case i+1 < len(c.args):
			return c.args[i+1], true
		default:
			return "", true
		}
	}
	return "", false
}

// setFlag sets a flag, in its old place or at the end.
func (c *container) setFlag(name, value string) {
	for i, n := range list(c.Node, "args") {
		key, _, inline := strings.Cut(strings.TrimLeft(n.Value, "-"), "=")
		switch {
		case key != name || !strings.HasPrefix(n.Value, "-"):
			continue
		case inline:
			n.Value = "-" + name + "=" + value
		case i+1 < len(list(c.Node, "args")):
			list(c.Node, "args")[i+1].Value = value
		}
		c.args = texts(c.Node, "args")
		return
	}
	item := node("-" + name + "=" + value)
	if args := child(c.Node, "args"); args != nil && args.Style&yaml.FlowStyle != 0 {
		item.Style = yaml.DoubleQuotedStyle
	}
	push(c.Node, "args", item)
	c.args = texts(c.Node, "args")
}

// expanded returns the arguments as the daemon receives them: the kubelet expands
// variables, and example values replace the placeholders.
func (c *container) expanded() []string {
	replace := []string{"__PILLAR__LOCAL__DNS__", exampleLocal, "__PILLAR__DNS__SERVER__", exampleService}
	for name, value := range c.env {
		replace = append(replace, "$("+name+")", value)
	}
	r := strings.NewReplacer(replace...)
	args := make([]string, len(c.args))
	for i, a := range c.args {
		args[i] = r.Replace(a)
	}
	return args
}

// literal replaces the variables in s, a text of a Corefile, whose values the manifest has.
// It returns "" if other variables remain: only the node knows them.
func (c *container) literal(s string) string {
	for _, e := range list(c.Node, "env") {
		if child(e, "valueFrom") == nil {
			s = strings.NewReplacer("{$"+scalar(e, "name")+"}", scalar(e, "value"), "{%"+scalar(e, "name")+"%}", scalar(e, "value")).Replace(s)
		}
	}
	if strings.HasPrefix(s, "{") {
		return ""
	}
	return s
}

// source is the origin of a file in the container.
type source struct {
	configMap, key string
}

// file returns the ConfigMap key that is mounted as a file and for which has is
// true.
func (c *container) file(name string, has func(source) bool) (source, bool) {
	for _, m := range list(c.Node, "volumeMounts") {
		for _, v := range list(c.pod, "volumes") {
			if scalar(v, "name") != scalar(m, "name") || child(v, "configMap") == nil {
				continue
			}
			key, ok := keyAt(find(v, "configMap"), m, name)
			if s := (source{scalar(v, "configMap", "name"), key}); ok && has(s) {
				return s, true
			}
		}
	}
	return source{}, false
}

// keyAt returns the key of a ConfigMap volume that a mount has as file name.
func keyAt(volume, mount *yaml.Node, name string) (string, bool) {
	at, sub := scalar(mount, "mountPath"), scalar(mount, "subPath")
	var rel string
	switch {
	case sub != "" && path.Clean(at) == path.Clean(name):
		rel = sub
	case sub == "" && path.Dir(path.Clean(name)) == path.Clean(at):
		rel = path.Base(name)
	default:
		return "", false
	}
	items := list(volume, "items")
	for _, i := range items {
		if scalar(i, "path") == rel {
			return scalar(i, "key"), true
		}
	}
	return rel, len(items) == 0
}

// corefile returns the file that the daemon reads, by node-cache's rules.
func (c *container) corefile(has func(source) bool) (s source, base, ok bool) {
	name, given := c.flag("basecorefile")
	if !given {
		name = "/etc/coredns/Corefile.base"
	}
	if s, ok := c.file(name, has); ok {
		return s, true, true
	}
	name, given = c.flag("conf")
	if !given {
		if name, given = c.flag("corefile"); !given {
			name = "/etc/Corefile"
		}
	}
	s, ok = c.file(name, has)
	return s, false, ok
}

// hostNetwork reports whether the pod uses the host's network.
func (c *container) hostNetwork() bool { return scalar(c.pod, "hostNetwork") == "true" }

// setsUp reports whether the daemon sets up an interface or rules on the host.
func (c *container) setsUp() bool {
	link, _ := c.flag("setupinterface")
	rules, _ := c.flag("setupiptables")
	return link != "false" || rules != "false"
}
