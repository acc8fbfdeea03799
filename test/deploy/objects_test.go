package deploy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// objects has the decoded documents of a manifest by KIND/NAME.
type objects map[string]any

// newObject returns an empty object of a kind, or nil for an unexpected kind.
func newObject(kind string) any {
	switch kind {
	case "v1/ConfigMap":
		return new(core.ConfigMap)
	case "v1/Service":
		return new(core.Service)
	case "v1/ServiceAccount":
		return new(core.ServiceAccount)
	case "apps/v1/DaemonSet":
		return new(apps.DaemonSet)
	case "rbac.authorization.k8s.io/v1/Role":
		return new(rbac.Role)
	case "rbac.authorization.k8s.io/v1/RoleBinding":
		return new(rbac.RoleBinding)
	case "networking.k8s.io/v1/NetworkPolicy":
		return new(networking.NetworkPolicy)
	case "monitoring.coreos.com/v1/ServiceMonitor":
		return new(monitoring.ServiceMonitor)
	case "monitoring.coreos.com/v1/PodMonitor":
		return new(monitoring.PodMonitor)
	case "monitoring.coreos.com/v1/PrometheusRule":
		return new(monitoring.PrometheusRule)
	case "cilium.io/v2/CiliumLocalRedirectPolicy":
		return new(localRedirectPolicy)
	case "cilium.io/v2/CiliumNetworkPolicy":
		return new(ciliumNetworkPolicy)
	}
	return nil
}

// The parts of Cilium's types that the chart uses.
type localRedirectPolicy struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		RedirectFrontend struct {
			AddressMatcher *struct {
				IP      string       `json:"ip"`
				ToPorts []ciliumPort `json:"toPorts"`
			} `json:"addressMatcher"`
			ServiceMatcher *struct {
				ServiceName string       `json:"serviceName"`
				Namespace   string       `json:"namespace"`
				ToPorts     []ciliumPort `json:"toPorts"`
			} `json:"serviceMatcher"`
		} `json:"redirectFrontend"`
		RedirectBackend struct {
			LocalEndpointSelector meta.LabelSelector `json:"localEndpointSelector"`
			ToPorts               []ciliumPort       `json:"toPorts"`
		} `json:"redirectBackend"`
	} `json:"spec"`
}

type ciliumNetworkPolicy struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		EndpointSelector meta.LabelSelector `json:"endpointSelector"`
		Egress           []struct {
			ToEntities []string `json:"toEntities"`
			ToPorts    []struct {
				Ports []ciliumPort `json:"ports"`
			} `json:"toPorts"`
		} `json:"egress"`
	} `json:"spec"`
}

type ciliumPort struct {
	Name     string `json:"name"`
	Port     string `json:"port"`
	Protocol string `json:"protocol"`
}

// decode reads a manifest strictly: it refuses unknown kinds and fields, and fields
// or objects that are given twice.
func decode(t *testing.T, text string) objects {
	t.Helper()
	all := make(objects)
	for _, doc := range regexp.MustCompile(`(?m)^---\s*$`).Split(text, -1) {
		if strings.TrimSpace(regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(doc, "")) == "" {
			continue
		}
		var head struct {
			meta.TypeMeta `json:",inline"`
			Metadata      struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		o := newObject(head.APIVersion + "/" + head.Kind)
		if o == nil {
			t.Fatalf("unexpected kind %s/%s", head.APIVersion, head.Kind)
		}
		key := head.Kind + "/" + head.Metadata.Name
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if all[key] != nil {
			t.Errorf("%s is given twice", key)
		}
		if head.Metadata.Namespace == "" {
			t.Errorf("%s has no namespace", key)
		}
		all[key] = o
	}
	return all
}

// get returns the only object of a kind.
func get[T any](t *testing.T, all objects) T {
	t.Helper()
	var found []T
	for _, o := range all {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		var zero T
		t.Fatalf("%d objects are a %T, want 1", len(found), zero)
	}
	return found[0]
}

// pod returns the DaemonSet's pod and its container.
func pod(t *testing.T, all objects) (*core.PodSpec, *core.Container) {
	t.Helper()
	p := &get[*apps.DaemonSet](t, all).Spec.Template.Spec
	if len(p.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(p.Containers))
	}
	return p, &p.Containers[0]
}

// corefile returns the Corefile that the pod mounts.
func corefile(t *testing.T, all objects) string {
	t.Helper()
	p, _ := pod(t, all)
	for _, v := range p.Volumes {
		if v.Name == "config" {
			cm, ok := all["ConfigMap/"+v.ConfigMap.Name].(*core.ConfigMap)
			if !ok {
				t.Fatalf("ConfigMap %s does not exist", v.ConfigMap.Name)
			}
			return cm.Data[v.ConfigMap.Items[0].Key]
		}
	}
	t.Fatal("the pod has no volume config")
	return ""
}

// mustQuantity parses a quantity such as 64Mi.
func mustQuantity(t *testing.T, s string) resource.Quantity {
	t.Helper()
	q, err := resource.ParseQuantity(s)
	if err != nil {
		t.Fatal(fmt.Errorf("%q: %w", s, err))
	}
	return q
}
