package deploy

import (
	"maps"
	"testing"

	apps "k8s.io/api/apps/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// violations returns what the baseline Pod Security rules of the newest Kubernetes
// that the library knows forbid, by reason.
func violations(t *testing.T, all objects) map[string]string {
	t.Helper()
	rules, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := get[*apps.DaemonSet](t, all).Spec.Template
	found := make(map[string]string)
	for _, r := range rules.EvaluatePod(api.LevelVersion{Level: api.LevelBaseline, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		if !r.Allowed {
			found[r.ForbiddenReason] = r.ForbiddenDetail
		}
	}
	return found
}

// TestPodSecurity checks what each tier needs beyond the baseline Pod Security rules,
// as docs/security.md lists it.
func TestPodSecurity(t *testing.T) {
	with := func(kept map[string]string, more ...string) map[string]string {
		all := maps.Clone(kept)
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	const network, paths, caps, profile = "host namespaces", "hostPath volumes", "non-default capabilities", "forbidden AppArmor profile"
	adds := func(names string) string {
		return `container "nodens" must not include ` + names + ` in securityContext.capabilities.add`
	}
	cold := map[string]string{network: "hostNetwork=true", caps: adds(`"NET_ADMIN"`)}
	minimal := with(cold, paths, `volume "run"`)
	resilient := with(cold, paths, `volumes "run", "bpffs", "cgroup"`, caps, adds(`"BPF", "NET_ADMIN", "PERFMON"`),
		profile, `pod must not set AppArmor profile type to "Unconfined"`)
	full := with(resilient, network, "hostNetwork=true, hostPID=true", caps, adds(`"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_PTRACE"`))
	for _, c := range []struct {
		name, values string
		want         map[string]string
	}{
		{"default", "", minimal},
		{"minimal, cold", "tier=minimal,config.cacheSnapshot=false", cold},
		{"resilient", "tier=resilient", resilient},
		{"full", "tier=full", full},
		{"local redirect policy", "useHostNetwork=false,localRedirectPolicy.enabled=true", map[string]string{}},
		{"own Corefile", "config.customConfig=. {\n  errors\n}", with(minimal, "probe or lifecycle host", `container "nodens" uses probe or lifecycle host "169.254.20.10"`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := violations(t, mustTemplate(t, "--set", c.values)); !maps.Equal(got, c.want) {
				t.Errorf("forbidden: %q\nwant %q", got, c.want)
			}
		})
	}
}
