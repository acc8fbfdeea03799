package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodens-dns/nodens/internal/state"
)

// coreDNSPod adds a pod of CoreDNS that mounts two ConfigMaps, as AKS and k3s do.
func (a *api) coreDNSPod() {
	mount := func(name string) (corev1.Volume, corev1.VolumeMount) {
		optional := true
		of := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
		m := corev1.VolumeMount{Name: name + "-volume", MountPath: "/etc/coredns"}
		if name != "coredns" {
			m.MountPath, of.Optional = "/etc/coredns/custom", &optional
		}
		return corev1.Volume{Name: m.Name, VolumeSource: corev1.VolumeSource{ConfigMap: of}}, m
	}
	v1, m1 := mount("coredns")
	v2, m2 := mount("coredns-custom")
	a.pods["coredns"] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"}},
		Spec: corev1.PodSpec{NodeName: "node1", Volumes: []corev1.Volume{v1, v2},
			Containers: []corev1.Container{{Name: "coredns", VolumeMounts: []corev1.VolumeMount{m1, m2}}}},
	}
}

func TestStubDomains(t *testing.T) {
	const corefile = ".:53 {\n    kubernetes cluster.local\n    forward . /etc/resolv.conf\n}\nimport custom/*.server\n"
	const corp = "corp.example:53 {\n    forward . 10.1.2.3\n}\n"
	cluster := func(s *state.State) {
		s.Upstreams = append(s.Upstreams, state.Upstream{Zone: "cluster.local. in-addr.arpa.", Address: "10.96.0.10:53", Healthy: true})
	}
	for _, tt := range []struct {
		name, base, custom string
		change             func(*state.State)
		want               string // in the finding; empty: there is none
		status             int
	}{
		{"none", corefile, "", cluster, "", 0},
		{"in the Corefile", corefile + corp, "", cluster, "CoreDNS has corp.example. (ConfigMap coredns), and nodens does not", 1},
		{"in a second ConfigMap", corefile, corp, cluster, "CoreDNS has corp.example. (ConfigMap coredns, coredns-custom), and nodens does not", 1},
		{"a subdomain of the cluster domain", corefile + strings.ReplaceAll(corp, "corp.example", "x.cluster.local"), "", cluster, "", 0},
		{"nodens has the zone", corefile, corp, func(s *state.State) {
			cluster(s)
			s.Zones = append(s.Zones, state.Zone{Name: "corp.example."})
		}, "", 0},
		{"nodens forwards all names to CoreDNS", corefile, corp, func(s *state.State) {
			s.Upstreams = []state.Upstream{{Zone: ". cluster.local. in-addr.arpa.", Address: "10.96.0.10:53", Healthy: true}}
		}, "", 0},
		{"nodens has only the zone . for all names", corefile, corp, func(*state.State) {}, "", 0},
		{"nodens has no reverse zone", corefile, corp, func(s *state.State) {
			s.Upstreams = append(s.Upstreams, state.Upstream{Zone: "cluster.local.", Address: "10.96.0.10:53"})
		}, "CoreDNS has corp.example. (ConfigMap coredns, coredns-custom), and nodens does not", 1},
		{"unreadable", "a {", "", cluster, "", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAPI(t, "pods/exec", "configmaps")
			a.nodensPod("node1")
			a.coreDNSPod()
			a.configMaps = map[string]map[string]string{"coredns": {"Corefile": tt.base}}
			if tt.custom != "" {
				a.configMaps["coredns-custom"] = map[string]string{"corp.server": tt.custom}
			}
			a.answers["nodens-node1"+execFindings] = `{"findings":[],"unexamined":[]}`
			a.answers["nodens-node1"+execState] = stateJSON(tt.change)
			out, err := a.run("doctor -o wide")
			wantStatus(t, err, tt.status)
			if strings.Contains(out, "WARNING stub-domain-bypassed") != (tt.want != "") || !strings.Contains(out, tt.want) {
				t.Error(out)
			}
		})
	}
}

// TestClusterDomain: nodens's flag says which zone has the names of the cluster.
func TestClusterDomain(t *testing.T) {
	for _, tt := range []struct {
		name, domain string
		own          map[string]string // upstreams by zone of nodens
		want         []string
	}{
		{"reverse names do not go to CoreDNS", "cluster.local", map[string]string{".": "10.96.0.10:53", "in-addr.arpa.": "10.1.2.3:53"}, nil},
		{"another domain in the zone .", "K8s.example.", map[string]string{".": "10.96.0.10:53", "corp.test.": "10.1.2.3:53"}, nil},
		{"another domain in its zone", "x.K8s.example.", map[string]string{".": "192.0.2.1:53", "k8s.example.": "10.96.0.10:53"}, []string{"a.test."}},
		{"an unknown domain", "", map[string]string{".": "192.0.2.1:53", "k8s.example. in-addr.arpa.": "10.96.0.10:53"}, []string{"a.test."}},
	} {
		s := new(state.State)
		for zone, address := range tt.own {
			s.Upstreams = append(s.Upstreams, state.Upstream{Zone: zone, Address: address})
		}
		if got := bypassed([]string{".", "a.test."}, s, tt.domain, nil); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestFindCoreDNS: the Service that nodens forwards to says which pods are CoreDNS.
func TestFindCoreDNS(t *testing.T) {
	const found = "CoreDNS has corp.example. (ConfigMap coredns), and nodens does not"
	const noPod = "cluster: not examined: the stub domains of CoreDNS: no pod in namespace kube-system has the labels "
	selects := func(app string) *corev1.ServiceSpec {
		return &corev1.ServiceSpec{Selector: map[string]string{"app": app}}
	}
	for _, tt := range []struct {
		name, rights, labels string // labels of CoreDNS, and of a pod without a Corefile
		service              *corev1.ServiceSpec
		want                 string // in the output
		status               int
	}{
		{"usual labels, no right to read Services", "configmaps", "k8s-app=kube-dns", selects("dns"), found, 1},
		{"usual labels, no such Service", "configmaps services", "k8s-app=kube-dns", nil, found, 1},
		{"other labels", "configmaps services", "app=dns", selects("dns"), found, 1},
		{"other labels, and another server has the usual ones", "configmaps services", "app=dns k8s-app=kube-dns", selects("dns"), found, 1},
		{"other labels, no right to read Services", "configmaps", "app=dns", selects("dns"),
			noPod + "k8s-app=kube-dns: grant get on services: Service up says which pods are CoreDNS\n", 2},
		{"other labels, no such Service", "configmaps services", "app=dns", nil,
			noPod + "k8s-app=kube-dns: compare CoreDNS's Corefile with that of nodens; see docs/install.md\n", 2},
		{"other labels, a Service without selector", "configmaps services", "app=dns", &corev1.ServiceSpec{}, noPod + "k8s-app=kube-dns: compare", 2},
		{"the Service selects no pod", "configmaps services", "app=dns", selects("x"), noPod + "app=x: compare", 2},
		{"no right to read ConfigMaps", "", "k8s-app=kube-dns", nil, `cluster: not examined: the stub domains of CoreDNS: configmaps "coredns" is forbidden: `, 2},
		{"names go to the Service, those of the cluster to its endpoints", "configmaps services", "app=dns",
			&corev1.ServiceSpec{Selector: map[string]string{"app": "dns"}, ClusterIPs: []string{"192.0.2.1"}}, "1 node, 0 findings\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAPI(t, append(strings.Fields(tt.rights), "pods/exec")...)
			a.nodensPod("node1", "-upstreamsvc=up", "-cluster-domain=k8s.example")
			a.coreDNSPod()
			a.pods["other"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
			for i, label := range strings.Fields(tt.labels) {
				key, value, _ := strings.Cut(label, "=")
				a.pods[[]string{"coredns", "other"}[i]].Labels = map[string]string{key: value}
			}
			if tt.service != nil {
				a.services = map[string]corev1.ServiceSpec{"up": *tt.service}
			}
			a.configMaps = map[string]map[string]string{"coredns": {"Corefile": "corp.example {\n    forward . 10.1.2.3\n}\n"}}
			a.answers["nodens-node1"+execFindings] = `{"findings":[],"unexamined":[]}`
			a.answers["nodens-node1"+execState] = stateJSON(func(s *state.State) {
				s.Upstreams = append(s.Upstreams, state.Upstream{Zone: "k8s.example.", Address: "10.244.0.5:53"})
			})
			out, err := a.run("doctor")
			wantStatus(t, err, tt.status)
			if !strings.Contains(out, tt.want) {
				t.Error(out)
			}
		})
	}
}
