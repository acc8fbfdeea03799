package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestRights compares what the ServiceAccount of nodens may do with what any other may.
func TestRights(t *testing.T) {
	needCluster(t)
	for _, tt := range []struct {
		namespace string
		want      []string
	}{
		{"kube-system", []string{"endpointslices.discovery.k8s.io [] [] [list watch]"}},
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

// TestPods checks what kubelet and the API server have made of the chart.
func TestPods(t *testing.T) {
	needCluster(t)
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct {
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
		}
	}
	out := kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nodens", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != len(nodes) {
		t.Errorf("%d pods, want one per node", len(list.Items))
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
		if c.LivenessProbe == nil || c.ReadinessProbe == nil {
			t.Errorf("%s has no probe", p.Metadata.Name)
		}
		log := kubectl(t, "-n", "kube-system", "logs", p.Metadata.Name)
		if lines := strings.Count(log, "\n"); lines > 24 {
			t.Errorf("the log of %s has %d lines, more than a screen:\n%s", p.Metadata.Name, lines, log)
		}
		events := kubectl(t, "-n", "kube-system", "get", "events", "--no-headers", "--field-selector", "type=Warning,involvedObject.name="+p.Metadata.Name)
		if events != "" {
			t.Errorf("warnings of %s:\n%s", p.Metadata.Name, events)
		}
	}
}
