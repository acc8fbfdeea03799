package main

import (
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
		{"unreadable", "a {", "", cluster, "", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAPI(t, "pods/exec")
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
