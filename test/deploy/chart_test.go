package deploy

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
)

// template renders the chart for the namespace kube-system.
func template(args ...string) (string, error) {
	return command(".", helm, append([]string{"template", "nodens", chart, "--namespace", "kube-system", "--no-hooks"}, args...)...)
}

func mustTemplate(t *testing.T, args ...string) objects {
	t.Helper()
	out, err := template(args...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// exampleFiles returns the examples, and "" for the chart's defaults.
func exampleFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(examples + "/*.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	return append(files, "")
}

func valuesOf(file string) []string {
	if file == "" {
		return nil
	}
	return []string{"--values", file}
}

func TestLint(t *testing.T) {
	for _, file := range exampleFiles(t) {
		if out, err := command(".", helm, append([]string{"lint", "--strict", chart}, valuesOf(file)...)...); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// TestExamples decodes every example strictly and checks that the daemon accepts its
// flags and Corefile.
func TestExamples(t *testing.T) {
	for _, file := range exampleFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			all := mustTemplate(t, valuesOf(file)...)
			checkCorefile(t, all)
			checkPod(t, all)
		})
	}
}

// checkCorefile runs nodens check with the pod's flags and Corefile.
func checkCorefile(t *testing.T, all objects) string {
	t.Helper()
	_, c := pod(t, all)
	base := writeFile(t, filepath.Join(t.TempDir(), "Corefile.base"), corefile(t, all))
	for _, service := range []string{"NODENS_UPSTREAM", "COREDNS", "KUBE_DNS"} {
		t.Setenv(service+"_SERVICE_HOST", "10.96.0.99")
	}
	out, err := command(".", nodens, slices.Concat([]string{"check"}, c.Args, []string{"-basecorefile=" + base, "-kubednscm=" + t.TempDir()})...)
	if err != nil {
		t.Fatalf("%v\n%s", err, corefile(t, all))
	}
	return out
}

// checkPod checks what must be true with any values.
func checkPod(t *testing.T, all objects) {
	t.Helper()
	d := get[*apps.DaemonSet](t, all)
	p, c := pod(t, all)
	if u := d.Spec.UpdateStrategy.RollingUpdate; u == nil || u.MaxUnavailable.IntValue() != 0 || u.MaxSurge.IntValue() < 1 {
		t.Errorf("updateStrategy %+v: the new pod must start before the old one ends", d.Spec.UpdateStrategy)
	}
	for k, v := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[k] != v {
			t.Errorf("selector %s=%s does not match the pod's labels", k, v)
		}
	}
	if p.HostNetwork && len(c.Ports) > 0 {
		t.Errorf("the pod declares ports, which prevent a second pod on the node: %v", c.Ports)
	}
	s := c.SecurityContext
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("security context %+v", s)
	}
	if p.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("seccomp profile %+v", p.SecurityContext.SeccompProfile)
	}
	if p.PriorityClassName != "system-node-critical" || p.DNSPolicy != core.DNSDefault {
		t.Errorf("priority class %q, DNS policy %q", p.PriorityClassName, p.DNSPolicy)
	}
	limit, request := c.Resources.Limits[core.ResourceMemory], c.Resources.Requests[core.ResourceMemory]
	if least := mustQuantity(t, "64Mi"); request.Cmp(least) < 0 || limit.Cmp(request) < 0 {
		t.Errorf("memory request %v, limit %v", &request, &limit)
	}
}

// privileges has the privileges of a pod.
type privileges struct {
	caps              string
	hostNet, hostPID  bool
	user              int64
	hostPaths, mounts string // mounts: of host paths, with rw or ro
}

func privilegesOf(t *testing.T, all objects) privileges {
	t.Helper()
	p, c := pod(t, all)
	g := privileges{hostNet: p.HostNetwork, hostPID: p.HostPID}
	var caps, paths, mounts []string
	for _, name := range c.SecurityContext.Capabilities.Add {
		caps = append(caps, string(name))
	}
	for _, u := range []*int64{p.SecurityContext.RunAsUser, c.SecurityContext.RunAsUser} {
		if u != nil {
			g.user = *u
		}
	}
	for _, v := range p.Volumes {
		if v.HostPath == nil {
			continue
		}
		paths = append(paths, v.HostPath.Path)
		for _, m := range c.VolumeMounts {
			if m.Name == v.Name {
				mode := "rw"
				if m.ReadOnly {
					mode = "ro"
				}
				mounts = append(mounts, m.MountPath+":"+mode)
			}
		}
	}
	g.caps, g.hostPaths, g.mounts = strings.Join(caps, " "), strings.Join(paths, " "), strings.Join(mounts, " ")
	return g
}

// TestPrivileges checks that the pod has the privileges that docs/security.md lists,
// and no others.
func TestPrivileges(t *testing.T) {
	const bpfPaths, bpfMounts = "/run/nodens /sys/fs/bpf /sys/fs/cgroup", "/run/nodens:rw /sys/fs/bpf:rw /host/cgroup:ro"
	resilient := privileges{caps: "BPF NET_ADMIN NET_BIND_SERVICE PERFMON", hostNet: true, hostPaths: bpfPaths, mounts: bpfMounts}
	full := resilient
	full.caps, full.hostPID = resilient.caps+" SYS_ADMIN SYS_PTRACE", true
	optOut := resilient
	optOut.hostPaths, optOut.mounts = bpfPaths+" /var/log/pods", bpfMounts+" /var/log/pods:ro"
	for _, c := range []struct {
		name, values string
		want         privileges
	}{
		{"minimal", "tier=minimal", privileges{
			caps: "NET_ADMIN NET_BIND_SERVICE", hostNet: true, hostPaths: "/run/nodens", mounts: "/run/nodens:rw"}},
		{"pods' names", "tier=minimal,status.podNames=true", privileges{
			caps: "NET_ADMIN NET_BIND_SERVICE", hostNet: true, hostPaths: "/run/nodens /var/lib/cni/results", mounts: "/run/nodens:rw /var/lib/cni/results:ro"}},
		{"minimal, cold", "tier=minimal,config.cacheSnapshot=false", privileges{caps: "NET_ADMIN NET_BIND_SERVICE", hostNet: true}},
		{"resilient", "tier=resilient", resilient},
		{"full", "tier=full", full},
		{"full, off", "tier=full,redirect.mode=off", full}, // removes what a predecessor pinned
		{"opt-out", "tier=resilient,redirect.optOut={default}", optOut},
		{"local redirect policy", "useHostNetwork=false,localRedirectPolicy.enabled=true", privileges{user: 65532}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := privilegesOf(t, mustTemplate(t, "--set", c.values)); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

// cilium makes Helm render for a cluster with Cilium.
var cilium = []string{"--api-versions", "cilium.io/v2"}

// TestTier checks which tier and mode of redirection follow from the values and from
// the cluster's APIs.
func TestTier(t *testing.T) {
	for _, c := range []struct {
		values     string
		apis       []string
		tier, mode string
	}{
		{"", nil, "minimal", "off"},
		{"", cilium, "full", "auto"},
		{"tier=minimal", cilium, "minimal", "off"},
		{"tier=resilient", nil, "resilient", "on"},
		{"tier=full", nil, "full", "auto"},
		{"tier=full,redirect.mode=on", nil, "full", "on"},
		{"redirect.mode=off", cilium, "minimal", "off"},
		{"tier=resilient,redirect.mode=off", nil, "resilient", "off"},
		{"useHostNetwork=false,localRedirectPolicy.enabled=true", cilium, "minimal", "off"},
		{"config.customConfig=. {\n  errors\n}", cilium, "minimal", "off"},
		{"config.customConfig=. {\n  redirect on\n}", cilium, "full", "on"},
		{"tier=full,config.customConfig=. {\n  redirect\n}", nil, "full", "auto"},
	} {
		t.Run(c.values+" "+strings.Join(c.apis, "="), func(t *testing.T) {
			all := mustTemplate(t, append(c.apis, "--set", c.values)...)
			caps, tier := privilegesOf(t, all).caps, "minimal"
			if strings.Contains(caps, "BPF") {
				tier = "resilient"
			}
			if strings.Contains(caps, "SYS_ADMIN") {
				tier = "full"
			}
			mode := "off"
			if m := regexp.MustCompile(`(?m)^ +redirect( \w+)?`).FindStringSubmatch(corefile(t, all)); m != nil {
				mode = cmp.Or(strings.TrimSpace(m[1]), "auto")
			}
			if tier != c.tier || mode != c.mode {
				t.Errorf("tier %s, mode %s; want %s, %s", tier, mode, c.tier, c.mode)
			}
		})
	}
}

// TestAccess checks that the pod may read EndpointSlices of one namespace only, and
// only if it uses them.
func TestAccess(t *testing.T) {
	for values, want := range map[string]bool{
		"tier=full":                                  true,
		"tier=full,endpoints.learn=false":            false,
		"tier=full,redirect.mode=off":                false,
		"tier=minimal":                               false,
		"tier=minimal,endpoints.asUpstreams=true":    true,
		"tier=resilient,serviceAccount.create=false": true,
		"tier=full,endpoints.serviceNamespace=dns":   true,
	} {
		t.Run(values, func(t *testing.T) {
			all := mustTemplate(t, "--set", values)
			p, _ := pod(t, all)
			if got := *p.AutomountServiceAccountToken; got != want {
				t.Errorf("automountServiceAccountToken is %t", got)
			}
			if !want {
				for name := range all {
					if strings.HasPrefix(name, "Role") {
						t.Errorf("there is a %s", name)
					}
				}
				return
			}
			role, binding := get[*rbac.Role](t, all), get[*rbac.RoleBinding](t, all)
			wantRules := []rbac.PolicyRule{{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}}}
			if !reflect.DeepEqual(role.Rules, wantRules) {
				t.Errorf("rules %+v", role.Rules)
			}
			if s := binding.Subjects[0]; binding.RoleRef.Name != role.Name || s.Name != p.ServiceAccountName || s.Namespace != "kube-system" {
				t.Errorf("binding %+v", binding)
			}
			wantNamespace := "kube-system"
			if strings.Contains(values, "serviceNamespace") {
				wantNamespace = "dns"
			}
			if role.Namespace != wantNamespace || binding.Namespace != wantNamespace {
				t.Errorf("role in %s, binding in %s", role.Namespace, binding.Namespace)
			}
		})
	}
}

// TestAppArmor checks that only tiers with BPF change the AppArmor profile, by the
// field or annotation of the Kubernetes version.
func TestAppArmor(t *testing.T) {
	const annotation = "container.apparmor.security.beta.kubernetes.io/nodens"
	for _, c := range []struct {
		tier, version      string
		annotated, inField bool
	}{
		{"minimal", "1.29.0", false, false},
		{"resilient", "1.29.0", true, false},
		{"minimal", "1.30.0", false, false},
		{"full", "v1.30.2-eks-1", false, true},
	} {
		all := mustTemplate(t, "--set", "tier="+c.tier, "--kube-version", c.version)
		p, _ := pod(t, all)
		annotated := get[*apps.DaemonSet](t, all).Spec.Template.Annotations[annotation] == "unconfined"
		f := p.SecurityContext.AppArmorProfile
		inField := f != nil && f.Type == core.AppArmorProfileTypeUnconfined
		if annotated != c.annotated || inField != c.inField {
			t.Errorf("%s, %s: annotation %t, field %t", c.tier, c.version, annotated, inField)
		}
	}
}

// TestNodeFields checks the environment: the node's name, its addresses, of both families if
// kubelets have the field, and the node's zone if nodens reads endpoints.
func TestNodeFields(t *testing.T) {
	const name, zone = "spec.nodeName", "metadata.labels['topology.kubernetes.io/zone']"
	for _, c := range []struct {
		values, version string
		want            map[string]string
	}{
		{"tier=full,redirect.mode=off", "1.32.0", map[string]string{"NODE_NAME": name}},
		{"tier=resilient", "1.31.4", map[string]string{"NODE_NAME": name, "NODE_IP": "status.hostIP", "NODE_ZONE": zone}},
		{"tier=full", "v1.32.0-eks-1", map[string]string{"NODE_NAME": name, "NODE_IP": "status.hostIPs", "NODE_ZONE": zone}},
		{"tier=full,endpoints.learn=false", "1.32.0", map[string]string{"NODE_NAME": name, "NODE_IP": "status.hostIPs"}},
		{"tier=minimal,endpoints.asUpstreams=true", "1.32.0", map[string]string{"NODE_NAME": name, "NODE_ZONE": zone}},
	} {
		p, _ := pod(t, mustTemplate(t, "--set", c.values, "--kube-version", c.version))
		got := map[string]string{}
		for _, e := range p.Containers[0].Env {
			got[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.values, c.version, got, c.want)
		}
	}
}

// TestMergedPod checks that values for other charts, which add only NET_ADMIN, remove
// no capability, and that the pod mounts nothing that it does not use.
func TestMergedPod(t *testing.T) {
	p, c := pod(t, mustTemplate(t, "--set", "tier=minimal,redirect.optOut={a},securityContext.capabilities.add={NET_ADMIN,NET_RAW}"))
	if want := []core.Capability{"NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW"}; !slices.Equal(c.SecurityContext.Capabilities.Add, want) {
		t.Errorf("capabilities %v, want %v", c.SecurityContext.Capabilities.Add, want)
	}
	if want := []core.Capability{"ALL"}; !slices.Equal(c.SecurityContext.Capabilities.Drop, want) {
		t.Errorf("dropped capabilities %v, want %v", c.SecurityContext.Capabilities.Drop, want)
	}
	for _, v := range p.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/run/nodens" {
			t.Errorf("%s is mounted", v.HostPath.Path)
		}
	}
}

// TestBadValues checks that the chart refuses values that cannot work, and that the
// message names the value.
func TestBadValues(t *testing.T) {
	for values, want := range map[string]string{
		"config.localDns=169.254.20":                                                    `config.localDns: "169.254.20" is not an IP address`,
		`config.localDns=169.254.20.10\, fd00::1`:                                       `config.localDns: " fd00::1" is not an IP address; separate addresses by commas without spaces`,
		"config.dnsServer=kube-dns":                                                     `config.dnsServer: "kube-dns" is not an IP address`,
		"config.dnsServer=169.254.20.10":                                                `config.dnsServer is also in config.localDns`,
		"config.dnsServer=10.96.0.10,config.customUpstreamsvc=kube-dns":                 `which makes a loop; leave customUpstreamsvc empty`,
		"config.commProtocol=tcp":                                                       `at '/config/commProtocol': value must be one of 'force_tcp', 'prefer_udp', ''`,
		"config.healthPort=0":                                                           `at '/config/healthPort': minimum: got 0, want 1`,
		"config.lameduck=5":                                                             `at '/config/lameduck': got number, want string`,
		"config.lameduck=26s":                                                           `config.lameduck is 26s, and the shutdown after it takes 5s: terminationGracePeriodSeconds must be at least 31, not 30`,
		"config.lameduck=1m,terminationGracePeriodSeconds=64":                           `terminationGracePeriodSeconds must be at least 65, not 64`,
		"config.localDnsIp=1.1.1.1":                                                     `at '/config': additional properties 'localDnsIp' not allowed`,
		"config.zones.a.plugins.kubernetes=true":                                        `at '/config/zones/a/plugins': additional properties 'kubernetes' not allowed`,
		"config.zones.a.plugins.health.port=1":                                          `config.zones.a.plugins.health.port is 1, but the process has one health port, config.healthPort, which is 8080`,
		"config.customConfig=x,config.extraServerBlocks=y":                              `config.customConfig replaces the whole Corefile`,
		"tier=full,redirect.mode=auto,config.customConfig=. {\n  errors\n}":             "redirect.mode is auto, but config.customConfig sets redirection to off: write `redirect auto` into config.customConfig, or leave redirect.mode empty",
		"tier=full,redirect.mode=auto,config.customConfig=. {\n  redirect on {\n  }\n}": "redirect.mode is auto, but config.customConfig sets redirection to on",
		"config.customConfig=. {\n  redirect # all\n},redirect.mode=off":                "redirect.mode is off, but config.customConfig sets redirection to auto",
		"config.customConfig=. {\n  redirect # all\n}":                                  "redirect.mode is auto, but the tier minimal has no privileges for redirection: set tier to full",
		"redirect.mode=on":                                                              "redirect.mode is on, but the tier minimal has no privileges for redirection: set tier to resilient or full",
		"tier=resilient,redirect.mode=auto":                                             "redirect.mode auto queries from inside pods, which needs tier full",
		"tier=full,redirect.freeSockets=true":                                           "redirect.freeSockets was removed: set tier to full",
		"tier=full,extraArgs={-redirect-heartbeat=1s}":                                  "extraArgs has -redirect-heartbeat=1s, which was removed: set the values of redirect",
		"tier=maximal": `at '/tier': value must be one of '', 'minimal', 'resilient', 'full'`,
		"tier=full,config.customConfig=. {\n  redirect\n},redirect.fallbacks={10.0.0.1}": "redirect.fallbacks, redirect.uplinks and redirect.port are not used with config.customConfig",
		"tier=full,config.customConfig=. {\n  redirect\n},redirect.port=20100":           "redirect.port are not used with config.customConfig",
		"tier=full,config.customConfig=. {\n  redirect\n},redirect.optOut={a}":           "set both redirect.optOut and the option opt_out",
		"tier=full,config.customConfig=. {\n  redirect {\n    opt_out a\n  }\n}":         "set both redirect.optOut and the option opt_out",
		"config.extraServerBlocks=a. {\n  redirect\n}":                                   "config.extraServerBlocks has a redirect directive",
		"fastpath.mode=on": "fastpath.mode is on, but the tier minimal has no privileges for BPF: set tier to resilient or full",
		"tier=resilient,fastpath.mode=auto,fastpath.optOut={a}":                                              "finds the networks of pods, which needs tier full",
		"tier=resilient,config.extraServerBlocks=a. {\n  fastpath on {\n    lease 1s\n    opt_out a\n  }\n}": "finds the networks of pods, which needs tier full",
		"tier=resilient,config.extraServerBlocks=a. {\nfastpath {\nopt_out a\n}\n}":                          "finds the networks of pods, which needs tier full",
		"tier=resilient,config.customConfig=. {\n  redirect on\n  fastpath {\n    opt_out a\n  }\n}":         "finds the networks of pods, which needs tier full",
		"tier=full,fastpath.mode=on,config.customConfig=. {\n  errors\n  redirect\n}":                        "write the fastpath directive into config.customConfig",
		"tier=full,fastpath.mode=on,config.extraServerBlocks=a. {\n  fastpath off\n}":                        "fastpath.mode is on, and config.extraServerBlocks has a fastpath directive, too",
		"config.extraServerBlocks=a. {\n  fastpath\n}":                                                       "the fastpath directive in the Corefile needs BPF",
		"redirect.mode=maybe":           `at '/redirect/mode': value must be one of '', 'off', 'auto', 'on'`,
		"redirect.optOut={Kube_System}": `at '/redirect/optOut/0': 'Kube_System' does not match pattern`,
		"status.address=0.0.0.0:9354":   "status.address is 0.0.0.0:9354: pods can reach it and read the queries of other pods; set status.tokenSecret, or use 127.0.0.1",
		"status.address=9354":           `at '/status/address': got number, want string`,
		"status.address=node:9354":      `at '/status/address': 'node:9354' does not match pattern`,
		"useHostNetwork=false,localRedirectPolicy.enabled=true,status.podNames=true": "status.podNames reads files of root",
		"useHostNetwork=false":             `without useHostNetwork, pods do not reach nodens`,
		"localRedirectPolicy.enabled=true": `set useHostNetwork to false`,
		"useHostNetwork=false,localRedirectPolicy.enabled=true,redirect.mode=on": `redirect.mode needs useHostNetwork`,
		"useHostNetwork=false,localRedirectPolicy.enabled=true,tier=full":        `tier full needs useHostNetwork`,
		"endpoints.learn=false,endpoints.asUpstreams=true":                       `endpoints.asUpstreams needs endpoints.learn`,
		"image.digest=latest": `at '/image/digest': 'latest' does not match pattern`,
		"tolerations=all":     `at '/tolerations': got string, want array`,
		"config.lameduck=1m30s,terminationGracePeriodSeconds=94": `terminationGracePeriodSeconds must be at least 95, not 94`,
		"config.lameduck=1h":                                                   `terminationGracePeriodSeconds must be at least 3605, not 30`,
		"updateStrategy.rollingUpdate.maxUnavailable=10%":                      `maxSurge is 1 and maxUnavailable is 10%, but exactly one of them must be 0`,
		"updateStrategy.rollingUpdate.maxSurge=0":                              `maxSurge is 0 and maxUnavailable is 0, but exactly one`,
		"config.cacheSize=110M":                                                `config.cacheSize 110M does not fit: resources.limits.memory, 128 MiB, leaves 89 MiB after 36 MiB for the process and its buffers and 2 MiB for misses and TCP connections`,
		"tier=full,extraArgs={-max-misses=100000}":                             `-max-misses 100000 needs 390 MiB (4 KiB each); resources.limits.memory, 128 MiB, leaves 26 MiB after the cache's 64 MiB, 36 MiB for the process and its buffers and 2 MiB for TCP connections`,
		"tier=full,extraArgs={-quiet,--max-misses=4000},config.cacheSize=80Mi": `-max-misses 4000 needs 15 MiB (4 KiB each); resources.limits.memory, 128 MiB, leaves 10 MiB after the cache's 80 MiB`,
		"tier=full,extraArgs={-quiet,-max-tcp-connections=1000}":               `-max-tcp-connections 1000 needs 125 MiB (64 KiB each, on 2 addresses); resources.limits.memory, 128 MiB, leaves 7 MiB after the cache's 64 MiB, 36 MiB for the process and its buffers, 18 MiB for misses and 2 MiB for TCP connections to upstreams`,
		"updateStrategy.type=Recreate":                                         `at '/updateStrategy/type': value must be one of 'RollingUpdate', 'OnDelete'`,
	} {
		t.Run(values, func(t *testing.T) {
			out, err := template("--set", values)
			if err == nil {
				t.Fatalf("accepted:\n%s", out)
			}
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant %q in it", err, want)
			}
		})
	}
}

// TestLimits checks that the chart and nodens check agree on what fits a memory limit
// that nodens check cannot see here: the largest values of the daemon's table.
func TestLimits(t *testing.T) {
	for _, c := range []struct{ memory, flag, fits, over string }{
		{"128Mi", "-max-misses", "6656", "6657"},
		{"128Mi", "-cache-size", "89M", "90M"},
		{"128Mi", "-max-tcp-connections", "56", "57"},
		{"134217728", "-max-misses", "6656", "6657"},
		{"1Gi", "-max-misses", "99840", "99841"},
		{"16Mi", "-max-misses", "128", "129"},
		{"64M", "-cache-size", "28M", "29M"},
	} {
		for value, fits := range map[string]bool{c.fits: true, c.over: false} {
			_, err := template("--set", "tier=full,resources.requests.memory=8Mi,resources.limits.memory="+c.memory+",extraArgs={"+c.flag+"="+value+"}")
			if (err == nil) != fits {
				t.Errorf("%s with %s %s: %v", c.memory, c.flag, value, err)
			}
		}
	}
	mustTemplate(t, "--set", "resources=null,extraArgs={-max-misses=100000}")
}

// TestStatusValues checks the flags and the volumes of the status address.
func TestStatusValues(t *testing.T) {
	for _, c := range []struct {
		values, flags string // the flags that begin with -status
		secret        string
	}{
		{"tier=minimal", "", ""},
		{"status.address=", "-status-address=", ""},
		{"status.address=127.0.0.1:80", "-status-address=127.0.0.1:80", ""},
		{"status.address=[::1]:80", "-status-address=[::1]:80", ""},
		{"status.address=:9354,status.tokenSecret=nodens-token", "-status-address=:9354 -status-token-file=/etc/nodens-status/token", "nodens-token"},
	} {
		p, container := pod(t, mustTemplate(t, "--set", c.values))
		var flags []string
		for _, a := range container.Args {
			if strings.HasPrefix(a, "-status") {
				flags = append(flags, a)
			}
		}
		secret := ""
		for _, v := range p.Volumes {
			if v.Secret == nil {
				continue
			}
			secret = v.Secret.SecretName
			mounted := func(m core.VolumeMount) bool {
				return m.Name == v.Name && m.MountPath == "/etc/nodens-status" && m.ReadOnly
			}
			if !slices.ContainsFunc(container.VolumeMounts, mounted) {
				t.Errorf("%s: %+v", c.values, container.VolumeMounts)
			}
		}
		if got := strings.Join(flags, " "); got != c.flags || secret != c.secret {
			t.Errorf("%s: flags %q, secret %q", c.values, got, secret)
		}
	}
}

// TestValues checks that values reach the Corefile.
func TestValues(t *testing.T) {
	for values, want := range map[string]string{
		"config.healthPort=8090":                                          "health :8090",
		"config.prefetch.enabled=true":                                    "prefetch 3 30s 20%",
		"config.serveStale=1h":                                            "serve_stale 1h",
		"config.enableLogging=true":                                       "    log\n",
		"config.commProtocol=prefer_udp":                                  "prefer_udp",
		"config.upstreamForwardConfig.max_concurrent=100":                 "max_concurrent 100",
		"config.upstreamForwardConfig={policy sequential}":                "policy sequential",
		"config.upstreamServers=192.0.2.1 192.0.2.2":                      "forward . 192.0.2.1 192.0.2.2\n",
		"config.dnsDomain=k8s.example":                                    "k8s.example:53 {",
		"config.port.number=5353":                                         "cluster.local:5353 {",
		"config.cacheTTL=60":                                              "cache 60\n",
		"endpoints.asUpstreams=true":                                      "kubernetes_endpoints",
		"config.noIPv6Lookups=true":                                       "template IN AAAA {\n        rcode NOERROR\n    }",
		"config.lameduck=9s":                                              "lameduck 9s",
		"config.metricsPort=9999":                                         "prometheus :9999",
		"tier=resilient,redirect.port=20100":                              "    redirect on {\n        target :20100\n    }\n",
		"tier=full,redirect.fallbacks={10.0.0.1,10.0.0.2:5353}":           "    redirect auto {\n        target :20053\n        fallback 10.0.0.1 10.0.0.2:5353\n    }\n",
		"tier=full,redirect.optOut={a,b/c},redirect.uplinks={eth0,eth1}":  "        opt_out a b/c\n        uplink eth0 eth1\n",
		"tier=full,config.customConfig=. {\n  redirect # all\n errors\n}": "  redirect # all\n",
		"tier=full,config.customConfig=. {\n  redirect {\n    opt_out a\n  }\n errors\n},redirect.optOut={a}":                  "    opt_out a\n",
		"config.customConfig=. {\n  errors\n},redirect.mode=off":                                                               "  errors\n",
		"tier=resilient,fastpath.mode=on":                                                                                      "    fastpath on\n",
		"tier=full,fastpath.mode=auto,fastpath.optOut={a,b/c}":                                                                 "    fastpath auto {\n        opt_out a b/c\n    }\n",
		"tier=full,redirect.mode=off,fastpath.mode=on,fastpath.optOut={a}":                                                     "    fastpath on {\n        opt_out a\n",
		"tier=full,redirect.mode=off,config.customConfig=. {\n  cache\n  fastpath on {\n    entries 64\n    opt_out a\n  }\n}": "    opt_out a\n",
		"tier=full,config.extraServerBlocks=example.org {\n  fastpath\n  bind 127.0.0.1\n}":                                    "  fastpath\n",
		"config.extraServerBlocks=example.org { bind __PILLAR__LOCAL__DNS__}":                                                  "example.org {",
	} {
		t.Run(values, func(t *testing.T) {
			all := mustTemplate(t, "--set", values)
			if got := corefile(t, all); !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
			if p, _ := pod(t, all); mountsFile(p, "/var/log/pods") != strings.Contains(want, "opt_out") {
				t.Errorf("/var/log/pods is mounted: %t", mountsFile(p, "/var/log/pods"))
			}
			if mark := get[*apps.DaemonSet](t, all).Spec.Template.Annotations["nodens/fastpath"]; (mark != "") != strings.Contains(values, "fastpath") {
				t.Errorf("annotation nodens/fastpath: %q; turning the fast path on must replace the pods", mark)
			}
			if !strings.Contains(values, "extraServerBlocks") {
				checkCorefile(t, all)
			}
		})
	}
}

// mountsFile reports whether the pod mounts a file of the host.
func mountsFile(p *core.PodSpec, path string) bool {
	return slices.ContainsFunc(p.Volumes, func(v core.Volume) bool { return v.HostPath != nil && v.HostPath.Path == path })
}

// TestZones renders config.zones as in the chart of lablabs.
func TestZones(t *testing.T) {
	all := mustTemplate(t, "--values", "testdata/zones.yaml")
	if got, want := corefile(t, all), readFile(t, "testdata/zones.corefile"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	checkCorefile(t, all)
}

// TestManifest checks that the rendered manifests are up to date, and decodes them.
func TestManifest(t *testing.T) {
	for file, with := range map[string][]string{"nodens.yaml": nil, "nodens-cilium.yaml": cilium} {
		out, err := template(with...)
		if err != nil {
			t.Fatal(err)
		}
		title := "# Rendered from deploy/chart with its defaults"
		if with != nil {
			title += ", for a cluster with Cilium"
		}
		out = title + "; `make manifest` writes it again.\n" +
			strings.ReplaceAll(out, "app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kubectl")
		path := root + "/deploy/" + file
		if *update {
			writeFile(t, path, out)
		}
		if got, _ := os.ReadFile(path); string(got) != out {
			t.Errorf("%s is out of date: run make manifest", path)
		}
		checkPod(t, decode(t, out))
	}
}

// TestPolicies decodes the policies of the examples.
func TestPolicies(t *testing.T) {
	files, err := filepath.Glob(examples + "/policies/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d policies: %v", len(files), err)
	}
	for _, f := range files {
		decode(t, readFile(t, f))
	}
}

// TestHelmTest checks the pod of helm test: it runs a command that the image has,
// under the restricted Pod Security Standard.
func TestHelmTest(t *testing.T) {
	out, err := command(".", helm, "template", "nodens", chart, "--show-only", "templates/tests/lookup.yaml")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"helm.sh/hook: test", "- lookup\n", "- SRV\n", `- "169.254.20.10"`, "runAsNonRoot: true", "drop: [ALL]"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
