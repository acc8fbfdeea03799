package cluster

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRights compares what the ServiceAccount of nodens may do with what any other may.
func TestRights(t *testing.T) {
	needCluster(t)
	watch := []string{"endpointslices.discovery.k8s.io [] [] [list watch]"}
	if strings.Contains(*options, "tier=minimal") { // without redirection, there are no fallbacks
		watch = nil
	}
	for _, tt := range []struct {
		namespace string
		want      []string
	}{
		{"kube-system", watch},
		{"default", nil},
	} {
		more := rights(t, "kube-system:nodens", tt.namespace)
		any := rights(t, "default:default", tt.namespace)
		more = slices.DeleteFunc(more, func(r string) bool { return slices.Contains(any, r) })
		if !slices.Equal(more, tt.want) {
			t.Errorf("in namespace %s, nodens may also %q, want %q", tt.namespace, more, tt.want)
		}
	}
}

func rights(t *testing.T, account, namespace string) (all []string) {
	t.Helper()
	out := kubectl(t, "auth", "can-i", "--list", "--no-headers", "--as=system:serviceaccount:"+account, "--as-group=system:serviceaccounts",
		"--as-group=system:authenticated", "-n", namespace)
	for line := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return all
}

// expected are the warnings of a pod that is not ready yet: nodens does not answer, or,
// after a reboot of the node, the kubelet has not read the pod's ConfigMaps yet.
var expected = regexp.MustCompile(`^(Unhealthy: Readiness probe failed|FailedMount: MountVolume.SetUp failed for volume "[^"]+" : object "kube-system"/"[^"]+" not registered$)`)

// starting is how long probes may fail after the container starts: until it is ready and a
// rollout's old pod is gone, as each pod answers the probes of both. The
// chart has minReadySeconds 10 and terminationGracePeriodSeconds 30.
const starting = 2 * time.Minute

// TestPods checks what kubelet and the API server have made of the chart.
func TestPods(t *testing.T) {
	needCluster(t)
	var list struct{ Items []pod }
	out := kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nodens", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	// A rollout is over before its old pods have ended.
	list.Items = slices.DeleteFunc(list.Items, func(p pod) bool { return p.Metadata.DeletionTimestamp != nil })
	if len(list.Items) != len(nodes) {
		t.Errorf("%d pods, want one per node", len(list.Items))
	}
	for _, n := range nodes {
		if root := onNode(t, n, "grep ' / ' /proc/$(pidof -s nodens)/mounts"); !strings.Contains(root, " ro,") {
			t.Errorf("the root of nodens on node %s is %s", n, root)
		}
	}
	for _, w := range warnings(t, "nodens") { // of the DaemonSet
		t.Errorf("warning of the DaemonSet: %s: %s", w.Reason, w.Message)
	}
	for _, p := range list.Items {
		c := p.Spec.Containers[0]
		s := c.SecurityContext
		if !s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation || s.Privileged {
			t.Errorf("%s: security context %+v", p.Metadata.Name, s)
		}
		if p.Spec.Priority != 2000001000 { // of system-node-critical
			t.Errorf("%s: priority %d", p.Metadata.Name, p.Spec.Priority)
		}
		if s := p.Status.ContainerStatuses; len(s) != 1 || !s[0].Ready {
			t.Errorf("%s is not ready: %+v", p.Metadata.Name, s)
		}
		if c.LivenessProbe == nil || c.ReadinessProbe == nil {
			t.Errorf("%s has no probe", p.Metadata.Name)
		}
		start, _, _ := strings.Cut(kubectl(t, "-n", "kube-system", "logs", p.Metadata.Name), "\nnodens ") // up to the banner
		if lines := strings.Count(start, "\n") + 2; lines > 24 {
			t.Errorf("the start of %s logs %d lines, more than a screen:\n%s", p.Metadata.Name, lines, start)
		}
		for _, w := range warnings(t, p.Metadata.Name) {
			if !expected.MatchString(w.Reason+": "+w.Message) || w.LastTimestamp.After(p.started().Add(starting)) {
				t.Errorf("warning of %s: %s: %s", p.Metadata.Name, w.Reason, w.Message)
			}
		}
	}
}

type pod struct {
	Metadata struct {
		Name              string
		DeletionTimestamp *time.Time
	}
	Spec struct {
		Priority   int
		Containers []struct {
			SecurityContext struct {
				ReadOnlyRootFilesystem   bool
				AllowPrivilegeEscalation bool
				Privileged               bool
			}
			LivenessProbe, ReadinessProbe *struct{}
		}
	}
	Status struct {
		ContainerStatuses []struct {
			Ready bool
			State struct{ Running struct{ StartedAt time.Time } }
		}
	}
}

// started returns when the container started. Zero: it does not run.
func (p pod) started() time.Time {
	for _, c := range p.Status.ContainerStatuses {
		return c.State.Running.StartedAt
	}
	return time.Time{}
}

type event struct {
	Reason, Message string
	LastTimestamp   time.Time
}

func warnings(t *testing.T, object string) []event {
	t.Helper()
	var list struct{ Items []event }
	out := kubectl(t, "-n", "kube-system", "get", "events", "-o", "json", "--field-selector", "type=Warning,involvedObject.name="+object)
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestChart runs the chart's own test, as `helm test` does.
func TestChart(t *testing.T) {
	needCluster(t)
	waitForDNS(t)
	helm(t, "test", "nodens", "--timeout", timeout.String())
}
