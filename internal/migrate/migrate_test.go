package migrate

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifest returns a DaemonSet with these further lines, and a ConfigMap. The lines
// have their indentation.
func manifest(container, pod, configMap string) string {
	return `apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: dns
spec:
  template:
    spec:
      hostNetwork: true
` + pod + `      containers:
      - image: registry.k8s.io/dns/k8s-dns-node-cache:1
` + container + `---
apiVersion: v1
kind: ConfigMap
metadata:
  name: dns
data:
` + configMap
}

const (
	mounted = `        volumeMounts:
        - {name: config, mountPath: /etc/coredns}
`
	volume = `      volumes:
      - name: config
        configMap: {name: dns}
`
	plainCorefile = "  Corefile.base: |\n    .:53 {\n        forward . 192.0.2.1\n        health 169.254.20.10:8080\n    }\n"
)

// run migrates and returns the first container, the pod and the report.
func run(t *testing.T, cfg Config, text string) (c, pod *yaml.Node, out string, r *Report) {
	t.Helper()
	cfg.Image = "image"
	out, r, err := Run(cfg, File{"in", text})
	if err != nil {
		t.Fatal(err)
	}
	docs, err := split("out", out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pod = find(docs[0].objects[0].Node, "spec", "template", "spec")
	return list(pod, "containers")[0], pod, out, r
}

func TestFlag(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
		ok   bool
	}{
		{[]string{"-conf", "a"}, "a", true},
		{[]string{"--conf", "a"}, "a", true},
		{[]string{"-conf=a=b"}, "a=b", true},
		{[]string{"--conf="}, "", true},
		{[]string{"-x", "-conf", "a"}, "a", true},
		{[]string{"-conf"}, "", true},
		{[]string{"-config", "a"}, "", false},
		{[]string{"conf", "a"}, "", false},
		{nil, "", false},
	} {
		c := &container{args: tc.args}
		if got, ok := c.flag("conf"); got != tc.want || ok != tc.ok {
			t.Errorf("%q: %q, %t", tc.args, got, ok)
		}
	}
}

// TestCorefileSource checks that the text to check is the one that the daemon reads.
func TestCorefileSource(t *testing.T) {
	for _, tc := range []struct {
		name, container, pod, data string
		want                       string // text of the Corefile; "": none is found
		base                       bool
	}{
		{"base by default", mounted, volume, "  Corefile.base: one\n  Corefile: two\n", "one", true},
		{"base by flag", mounted + "        args: [-basecorefile=/etc/coredns/Corefile]\n", volume, "  Corefile: two\n", "two", true},
		{"conf", mounted + "        args: [-conf, /etc/coredns/Corefile]\n", volume, "  Corefile: two\n", "two", false},
		{"corefile", mounted + "        args: [-corefile, /etc/coredns/Corefile]\n", volume, "  Corefile: two\n", "two", false},
		{"item", mounted, "      volumes:\n      - name: config\n        configMap:\n          name: dns\n          items: [{key: three, path: Corefile.base}]\n", "  three: three\n", "three", true},
		{"not among the items", mounted, "      volumes:\n      - name: config\n        configMap:\n          name: dns\n          items: [{key: other, path: x}]\n", "  Corefile.base: one\n", "", false},
		{"sub-path", "        volumeMounts: [{name: config, mountPath: /etc/Corefile, subPath: Corefile}]\n", volume, "  Corefile: two\n", "two", false},
		{"no mount", "", volume, "  Corefile.base: one\n", "", false},
		{"another ConfigMap", mounted, "      volumes: [{name: config, configMap: {name: elsewhere}}]\n", "  Corefile.base: one\n", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []Start
			check := func(s Start) ([]error, error) {
				if s.Name != "" || s.Corefile != "" { // not the flags alone
					got = append(got, s)
				}
				return nil, nil
			}
			_, _, _, r := run(t, Config{Check: check}, manifest(tc.container, tc.pod, tc.data))
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) == 0 || got[0].Corefile != tc.want || got[0].Base != tc.base) {
				t.Errorf("checked %+v, want %q", got, tc.want)
			}
			if missing := slices.ContainsFunc(r.LookAt, func(s string) bool { return strings.Contains(s, "Corefile is not in") }); missing != (tc.want == "") {
				t.Errorf("look at: %q", r.LookAt)
			}
		})
	}
}

// TestReady adds ready where health is, for every YAML style of the text.
func TestReady(t *testing.T) {
	for _, tc := range []struct {
		name, data string
		want       string // in the output
		host, port string // of the readiness probe
	}{
		{"literal", plainCorefile, "        ready 169.254.20.10:8181\n        health 169.254.20.10:8080\n", "169.254.20.10", "8181"},
		{"with a block", "  Corefile.base: |\n    . {\n      health :8080 {\n        lameduck 5s\n      }\n    }\n", "      ready :8181\n      health :8080 {\n", "", "8181"},
		{"IPv6", "  Corefile.base: |\n    . {\n      health [fd00::1]:8080\n    }\n", "ready [fd00::1]:8181\n", "fd00::1", "8181"},
		{"bare", "  Corefile.base: |\n    . {\n      health\n    }\n", "      ready :8181\n      health\n", "", "8181"},
		{"without health", "  Corefile.base: |\n    (s) {\n      errors\n    }\n    . {\n      import s\n    }\n", "    . {\n        ready 169.254.20.10:8181\n      import s\n", "169.254.20.10", "8181"},
		{"there already", "  Corefile.base: |\n    . {\n      health\n      ready :9000\n    }\n", "      ready :9000\n", "", "9000"},
		{"quoted", `  Corefile.base: ". {\n  health 169.254.20.10:8080\n}\n"` + "\n", "\n      ready 169.254.20.10:8181\n      health", "169.254.20.10", "8181"},
		{"folded", "  Corefile.base: >\n    . {\n\n      health 169.254.20.10:8080\n\n    }\n", "ready 169.254.20.10:8181", "169.254.20.10", "8181"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, out, r := run(t, Config{}, manifest(mounted+"        args: [-localip, 169.254.20.10]\n", volume, tc.data))
			get := find(c, "readinessProbe", "httpGet")
			if !strings.Contains(out, tc.want) || scalar(get, "path") != "/ready" || scalar(get, "host") != tc.host || scalar(get, "port") != tc.port {
				t.Errorf("%s\n%q", out, r)
			}
		})
	}
}

// TestPodDetails checks the changes of the pod.
func TestPodDetails(t *testing.T) {
	c, pod, out, r := run(t, Config{Redirect: RedirectOn}, manifest(`        command: [/node-cache, -localip, 169.254.20.10]
        args: [-pidfile=/run/dns/pid]
        securityContext: {privileged: true, capabilities: {add: [CAP_NET_RAW, NET_ADMIN]}, runAsNonRoot: true}
        ports: [{containerPort: 8080, name: health}]
        startupProbe: {httpGet: {path: /health, port: health}}
        volumeMounts:
        - {name: lock, mountPath: /run/xtables.lock}
        - {name: run, mountPath: /run/dns}
        - {name: bpf, mountPath: /sys/fs/bpf}
`, `      terminationGracePeriodSeconds: 5
      initContainers:
      - {name: other, image: other, volumeMounts: [{name: lock, mountPath: /run/xtables.lock}]}
      volumes:
      - {name: lock, hostPath: {path: /run/xtables.lock}}
      - {name: run, emptyDir: {}}
      - {name: bpf, hostPath: {path: /sys/fs/bpf/}}
`, plainCorefile))
	for _, tc := range []struct {
		what      string
		got, want []string
	}{
		{"arguments", texts(c, "args"), []string{"-localip", "169.254.20.10", "-pidfile=/run/dns/pid", "-metrics-listen-address=0.0.0.0:9355"}},
		{"capabilities", texts(c, "securityContext", "capabilities", "add"), []string{"NET_ADMIN", "NET_BIND_SERVICE", "BPF", "PERFMON", "NET_RAW"}},
		{"mounts", mapped(list(c, "volumeMounts"), "mountPath"), []string{"/run/dns", "/sys/fs/bpf", "/host/cgroup"}},
		{"volumes", mapped(list(pod, "volumes"), "name"), []string{"lock", "run", "bpf", "cgroup"}}, // another container has the lock
		{"probe", []string{scalar(c, "startupProbe", "httpGet", "port")}, []string{"8080"}},
		{"grace", []string{scalar(pod, "terminationGracePeriodSeconds")}, []string{"30"}},
		{"host PIDs", []string{scalar(pod, "hostPID")}, []string{""}},
		{"privileged", []string{scalar(c, "securityContext", "privileged")}, []string{""}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: %q, want %q\n%s", tc.what, tc.got, tc.want, out)
		}
	}
	for _, want := range []string{"runAsNonRoot", "other containers", "before Kubernetes 1.30", "or set fallback"} {
		if !slices.ContainsFunc(r.LookAt, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no %q in %q", want, r.LookAt)
		}
	}
}

func mapped(nodes []*yaml.Node, key string) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, scalar(n, key))
	}
	return all
}

// TestSetupMetrics changes the port that node-cache does not share.
func TestSetupMetrics(t *testing.T) {
	for args, want := range map[string][]string{
		"[]": {"-metrics-listen-address=0.0.0.0:9355"},
		"[-metrics-listen-address, '127.0.0.1:9000']": {"-metrics-listen-address", "127.0.0.1:9002"},
		"[--metrics-listen-address=:9000, -x]":        {"-metrics-listen-address=:9002", "-x"},
		"[-metrics-listen-address=0]":                 {"-metrics-listen-address=0"},
	} {
		c, _, _, _ := run(t, Config{}, manifest("        args: "+args+"\n", "", plainCorefile))
		if got := texts(c, "args"); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// TestRefused reports each line of the daemon's error.
func TestRefused(t *testing.T) {
	check := func(s Start) ([]error, error) {
		if s.Name == "" { // the flags alone
			return nil, nil
		}
		return []error{errors.New("three")}, errors.New("one\ntwo")
	}
	_, _, _, r := run(t, Config{Check: check}, manifest(mounted, volume, plainCorefile))
	if want := []string{"ConfigMap dns: one", "ConfigMap dns: two"}; !slices.Equal(r.Refused, want) {
		t.Errorf("refused %q", r.Refused)
	}
	if !slices.Contains(r.LookAt, "ConfigMap dns: three") {
		t.Errorf("look at %q", r.LookAt)
	}
	old := strings.Replace(manifest(mounted, volume, plainCorefile), "apps/v1", "extensions/v1beta1", 1)
	_, _, _, r = run(t, Config{}, old)
	if want := "DaemonSet dns: apps/v1 requires spec.selector; set its matchLabels to the labels of the pods"; !slices.Contains(r.Refused, want) {
		t.Errorf("without a selector: refused %q", r.Refused)
	}
}

// TestPrograms replaces, removes or refuses the commands of probes and hooks.
func TestPrograms(t *testing.T) {
	c, _, out, r := run(t, Config{}, manifest(mounted+`        readinessProbe: {exec: {command: [dig, "@169.254.20.10", .]}, periodSeconds: 7}
        livenessProbe: {exec: {command: [sh, -c, "nslookup . 169.254.20.10"]}}
        startupProbe: {exec: {command: [/nodens, status]}}
        lifecycle:
          preStop: {exec: {command: [sh, -c, "sleep 5 && kill -9 1"]}}
          postStart: {exec: {command: [/bin/true]}}
`, volume, plainCorefile))
	probe := find(c, "readinessProbe")
	if find(probe, "exec") != nil || scalar(probe, "httpGet", "path") != "/ready" || scalar(probe, "periodSeconds") != "7" {
		t.Errorf("readinessProbe:\n%s", out)
	}
	if want := []string{
		"DaemonSet dns: livenessProbe runs sh -c nslookup . 169.254.20.10, but the image has no program except /nodens; use httpGet with /health",
		"DaemonSet dns: postStart runs /bin/true, but the image has no program except /nodens",
	}; !slices.Equal(r.Refused, want) {
		t.Errorf("refused %q", r.Refused)
	}
	if find(c, "lifecycle", "preStop") != nil || find(c, "lifecycle", "postStart") == nil {
		t.Errorf("lifecycle:\n%s", out)
	}
	if !slices.ContainsFunc(r.Changed, func(s string) bool { return strings.Contains(s, "preStop (sh -c sleep 5 && kill -9 1) is removed") }) {
		t.Errorf("changed %q", r.Changed)
	}
}

// TestUntouched checks that other documents stay byte for byte.
func TestUntouched(t *testing.T) {
	other := "# a\n\napiVersion: v1\nkind:   Secret   # b\nmetadata: {name: 'x',   namespace: y}\n\n\n--- # c\n"
	_, _, out, _ := run(t, Config{}, manifest(mounted, volume, plainCorefile)+"---\n"+other)
	if !strings.HasSuffix(out, "---\n"+other) {
		t.Error(out)
	}
}
