package main

import (
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifests are the objects of a stream by "KIND NAMESPACE/NAME", decoded without the
// code of package migrate.
type manifests map[string]object

type object map[string]any

func decode(t *testing.T, text string) manifests {
	t.Helper()
	all := make(manifests)
	var add func(o object)
	add = func(o object) {
		if items, ok := o["items"].([]any); ok {
			for _, i := range items {
				add(i.(object))
			}
			return
		}
		meta, _ := o["metadata"].(object)
		name := fmt.Sprint(meta["name"])
		if ns, ok := meta["namespace"]; ok {
			name = fmt.Sprint(ns, "/", name)
		}
		all[fmt.Sprint(o["kind"], " ", name)] = o
	}
	for dec := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		if dec.Decode(&o) != nil {
			return all
		}
		if o != nil {
			add(o)
		}
	}
}

// at returns the value at a path of keys, or nil.
func (o object) at(keys ...string) any {
	var v any = o
	for _, k := range keys {
		m, _ := v.(object)
		v = m[k]
	}
	return v
}

func (o object) pod() object {
	p, _ := o.at("spec", "template", "spec").(object)
	return p
}

// cache returns the container of the cache: the one with -localip.
func (o object) cache() object {
	containers, _ := o.pod()["containers"].([]any)
	for _, c := range containers {
		if strings.Contains(fmt.Sprint(c), "-localip") {
			return c.(object)
		}
	}
	return object{}
}

func args(c object) []string {
	var all []string
	for _, key := range []string{"command", "args"} {
		list, _ := c[key].([]any)
		for _, a := range list {
			all = append(all, fmt.Sprint(a))
		}
	}
	return all
}

// claim is a sentence of the report and its check against input and output. m are
// the groups of the pattern.
type claim struct {
	pattern string
	holds   func(in, out object, m []string) bool
}

// claims are all sentences about one object.
var claims = []claim{
	{`image (\S+) becomes (\S+)`, func(in, out object, m []string) bool {
		return in.cache()["image"] == m[1] && out.cache()["image"] == m[2]
	}},
	{`(-\S+) becomes (\S+): node-cache does not share its port \d+, and the new pod starts beside it`, func(_, out object, m []string) bool {
		return hasFlag(out, m[1], m[2]) && surges(out)
	}},
	{`(-status-address) becomes (\S+): .*`, func(_, out object, m []string) bool { return hasFlag(out, m[1], m[2]) }},
	{`unknown flag (-[\w-]+): .*`, func(in, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(args(in.cache()), args(out.cache())), m[1])
	}},
	{`(-clients) becomes (all): .*`, func(_, out object, m []string) bool { return hasFlag(out, m[1], m[2]) }},
	{`command is removed, .*`, func(in, out object, _ []string) bool {
		return in.cache()["command"] != nil && out.cache()["command"] == nil
	}},
	{`ports are removed: .*`, func(in, out object, _ []string) bool {
		return in.cache()["ports"] != nil && out.cache()["ports"] == nil && surges(out)
	}},
	{`(\S+) uses port (\d+) by number`, func(_, out object, m []string) bool {
		return fmt.Sprint(out.cache().at(m[1], "httpGet", "port")) == m[2]
	}},
	{`targetPort becomes (\d+), .*`, func(_, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(out.at("spec", "ports")), "targetPort:"+m[1])
	}},
	{`(?:privileged|the security context) becomes the capabilities (.*) and a read-only root file system`, func(_, out object, m []string) bool {
		c, _ := out.cache()["securityContext"].(object)
		return fmt.Sprint(c.at("capabilities", "add")) == "["+strings.ReplaceAll(m[1], ", ", " ")+"]" && c["readOnlyRootFilesystem"] == true && c["privileged"] == nil
	}},
	{`the mount of xtables.lock is removed: .*`, func(_, out object, _ []string) bool {
		return !strings.Contains(fmt.Sprint(out.cache()["volumeMounts"]), "xtables.lock")
	}},
	{`an emptyDir volume at (\S+) for the PID file, .*`, func(_, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(out.cache()["volumeMounts"]), "mountPath:"+m[1])
	}},
	{`apiVersion (\S+) becomes (\S+), .*`, func(in, out object, m []string) bool { return in["apiVersion"] == m[1] && out["apiVersion"] == m[2] }},
	{`updateStrategy starts the new pod beside the old one \(maxSurge 1, maxUnavailable 0\)(; both share the ports)?`, func(_, out object, m []string) bool {
		return surges(out) && (m[1] != "") == (out.pod()["hostNetwork"] == true)
	}},
	{`terminationGracePeriodSeconds (\S+) becomes (\d+): .*`, func(in, out object, m []string) bool {
		const key = "terminationGracePeriodSeconds"
		return fmt.Sprint(in.pod()[key]) == m[1] && fmt.Sprint(out.pod()[key]) == m[2]
	}},
	{`the Corefile gets (ready \S+), .*`, corefileGets},
	{`the Corefile gets (redirect \w+): .*`, corefileGets},
	{`readinessProbe gets /ready on port (\d+): .*`, func(_, out object, m []string) bool {
		get, _ := out.cache().at("readinessProbe", "httpGet").(object)
		host := fmt.Sprint(get["host"])
		if out.pod()["hostNetwork"] != true && get["host"] != nil {
			return false // the kubelet cannot reach it
		}
		return get["path"] == "/ready" && fmt.Sprint(get["port"]) == m[1] && host != "0.0.0.0" && !strings.Contains(host, "{")
	}},
	{`host (\S+) is removed from (\S+): .*`, func(in, out object, m []string) bool {
		return in.cache().at(m[2], "httpGet", "host") == m[1] && out.cache().at(m[2], "httpGet", "host") == nil && out.cache().at(m[2], "httpGet") != nil
	}},
	{`preStop \((.*)\) is removed, .*`, func(in, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(in.cache().at("lifecycle", "preStop")), m[1]) && out.cache().at("lifecycle", "preStop") == nil
	}},
	{`mounts the BPF file system and, read-only, the cgroups, for redirection`, func(_, out object, _ []string) bool {
		text := fmt.Sprint(out.cache()["volumeMounts"], out.pod()["volumes"])
		return strings.Contains(text, "mountPath:/sys/fs/bpf") && strings.Contains(text, "mountPath:/host/cgroup") && strings.Contains(text, "path:/sys/fs/cgroup")
	}},
	{`sets hostPID, .*`, func(_, out object, _ []string) bool { return out.pod()["hostPID"] == true }},
	{`sets the AppArmor profile to Unconfined, .*`, func(_, out object, _ []string) bool {
		return out.cache().at("securityContext", "appArmorProfile", "type") == "Unconfined"
	}},
	{`before Kubernetes 1.30, use this annotation .*/(\S+): unconfined`, func(_, out object, m []string) bool { return out.cache()["name"] == m[1] }},
	{`(.+) removed: the API server fills them in`, func(in, out object, m []string) bool {
		for name := range strings.SplitSeq(m[1], ", ") {
			path := strings.Split(name, ".")
			if annotation, ok := strings.CutPrefix(name, "the annotation "); ok {
				path = []string{"metadata", "annotations", annotation}
			}
			if in.at(path...) == nil || out.at(path...) != nil {
				return false
			}
		}
		return true
	}},
	{`arguments (.*)`, func(in, out object, m []string) bool {
		words := strings.Fields(m[1])
		return !slices.ContainsFunc(words, func(w string) bool {
			return !slices.Contains(args(in.cache()), w) || !slices.Contains(args(out.cache()), w)
		})
	}},
	{`(livenessProbe)`, func(in, out object, m []string) bool { return reflect.DeepEqual(in.cache()[m[1]], out.cache()[m[1]]) }},
	{`nodens accepts the Corefile(, and replaces its placeholders as node-cache does)?`, func(_, out object, m []string) bool {
		return (m[1] != "") == strings.Contains(fmt.Sprint(out["data"]), "__PILLAR__")
	}},
	{`name, labels, selector, service account, tolerations, resources, metrics port and the mounted ConfigMaps`, func(in, out object, _ []string) bool {
		for _, path := range [][]string{{"metadata", "name"}, {"metadata", "labels"}, {"spec", "selector"}, {"spec", "template", "metadata", "labels"}} {
			if !reflect.DeepEqual(in.at(path...), out.at(path...)) {
				return false
			}
		}
		same := func(a, b object, key string) bool { return reflect.DeepEqual(a[key], b[key]) }
		return same(in.pod(), out.pod(), "serviceAccountName") && same(in.pod(), out.pod(), "tolerations") &&
			same(in.cache(), out.cache(), "resources") && reflect.DeepEqual(configMaps(in), configMaps(out))
	}},
	{`its other containers were not changed`, func(in, out object, _ []string) bool {
		others := func(o object) (all []any) {
			containers, _ := o.pod()["containers"].([]any)
			for _, c := range containers {
				if !reflect.DeepEqual(c, any(o.cache())) {
					all = append(all, c)
				}
			}
			return append(all, o.pod()["initContainers"])
		}
		return reflect.DeepEqual(others(in), others(out))
	}},
	{`its arguments have placeholders .*`, func(_, out object, _ []string) bool {
		return strings.Contains(strings.Join(args(out.cache()), " "), "__PILLAR__")
	}},
	{`has no memory limit, .*`, func(_, out object, _ []string) bool { return out.cache().at("resources", "limits", "memory") == nil }},
	{`while nodens does not answer, pods query the upstreams .*`, func(_, out object, _ []string) bool { return out.pod()["hostNetwork"] == true }},
	{`gets no redirection, because it does not use the host's network`, func(_, out object, _ []string) bool { return out.pod()["hostNetwork"] != true }},
	{`it imports files that migrate did not see: (.*)`, func(_, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(out["data"]), "import "+strings.Split(m[1], ", ")[0])
	}},
	{`it imports (.*), and migrate did not see such files; .*`, func(_, out object, m []string) bool {
		return strings.Contains(fmt.Sprint(out["data"]), "import "+strings.Split(m[1], " and ")[0])
	}},
	{`it is immutable, .*`, func(in, out object, _ []string) bool {
		return out["immutable"] == true && !reflect.DeepEqual(in["data"], out["data"])
	}},
	{`updateStrategy OnDelete stays: .*`, func(_, out object, _ []string) bool { return out.at("spec", "updateStrategy", "type") == "OnDelete" }},
	{`it uses port names, and the pods declare no ports; use portNumber`, func(_, out object, _ []string) bool {
		return regexp.MustCompile(`[pP]ort:[a-z]`).MatchString(fmt.Sprint(out["spec"]))
	}},
	// A refusal says what is in the manifest and stays there.
	{`apps/v1 requires spec.selector; .*`, func(_, out object, _ []string) bool { return out.at("spec", "selector") == nil }},
	{`Corefile:(\d+): (\w+): .*`, func(_, out object, m []string) bool { return strings.Contains(fmt.Sprint(out["data"]), m[2]) }},
	{`(\w+) runs (.*), but the image has no program except /nodens.*`, func(_, out object, m []string) bool {
		probe := fmt.Sprint(out.cache()[m[1]], out.cache().at("lifecycle", m[1]))
		return strings.Contains(probe, m[2])
	}},
}

func surges(o object) bool {
	return fmt.Sprint(o.at("spec", "updateStrategy", "rollingUpdate")) == "map[maxSurge:1 maxUnavailable:0]"
}

func hasFlag(o object, name, value string) bool {
	line := " " + strings.Join(args(o.cache()), " ") + " "
	return strings.Contains(line, " "+name+"="+value+" ") || strings.Contains(line, " "+name+" "+value+" ")
}

func corefileGets(in, out object, m []string) bool {
	count := func(o object) int { return strings.Count(fmt.Sprint(o["data"]), m[1]+"\n") }
	return count(out) == count(in)+1
}

func configMaps(o object) []any {
	var all []any
	volumes, _ := o.pod()["volumes"].([]any)
	for _, v := range volumes {
		if c := v.(object)["configMap"]; c != nil {
			all = append(all, c)
		}
	}
	return all
}

// TestReportIsTrue checks every sentence of every report against the output. A
// sentence without a check is an error.
func TestReportIsTrue(t *testing.T) {
	inputs, err := filepath.Glob("testdata/migrate/*.yaml")
	if err != nil || len(inputs) < 13 {
		t.Fatalf("%d inputs, error %v", len(inputs), err)
	}
	for _, input := range inputs {
		name := strings.TrimSuffix(filepath.Base(input), ".yaml")
		t.Run(name, func(t *testing.T) {
			text := readFile(t, input)
			out, report, _ := migrateFile(t, "", append(migrateArgs(name), input)...)
			in, done := decode(t, text), decode(t, out)
			if len(in) != len(done) {
				t.Errorf("%d objects become %d", len(in), len(done))
			}
			for line := range strings.Lines(report) {
				sentence, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "  - ")
				if ok && !holds(in, done, sentence) {
					t.Errorf("not true, or not checked: %s\n%s", sentence, out)
				}
			}
		})
	}
}

// holds reports whether a sentence has a check, and the check succeeds.
func holds(in, out manifests, sentence string) bool {
	if names, ok := strings.CutPrefix(sentence, "not changed: "); ok {
		for name := range strings.SplitSeq(names, ", ") {
			if out[name] == nil || !reflect.DeepEqual(in[name], out[name]) {
				return false
			}
		}
		return true
	}
	name, text, _ := strings.Cut(sentence, ": ")
	if out[name] == nil {
		return false
	}
	for _, c := range claims {
		if m := regexp.MustCompile("^(?:" + c.pattern + ")$").FindStringSubmatch(text); m != nil {
			return c.holds(in[name], out[name], m)
		}
	}
	return false
}
