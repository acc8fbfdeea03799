package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/state"
)

// Where installers run CoreDNS.
const (
	coreDNSNamespace = "kube-system"
	coreDNSSelector  = "k8s-app=kube-dns"
)

// addStubDomains adds a finding if nodens bypasses zones of CoreDNS's Corefile. A
// cluster without such a Corefile has none.
func (c *cluster) addStubDomains(ctx context.Context, d *diagnosis, pods []corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	flags := flagsOf(pods[0].Spec)
	name := cmp.Or(flags["upstreamsvc"], "kube-dns") // the flag's default
	service, serr := c.client.CoreV1().Services(pods[0].Namespace).Get(ctx, name, metav1.GetOptions{})
	if serr != nil {
		service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	zones, configMaps, err := c.coreDNSZones(ctx, service, serr)
	if err == nil && len(zones) > 0 {
		var s *state.State
		if s, err = c.anyState(ctx, pods); err == nil {
			zones = bypassed(zones, s, flags["cluster-domain"], service.Spec.ClusterIPs)
		}
	}
	switch {
	case err != nil:
		d.Unexamined = append(d.Unexamined, observation{"the stub domains of CoreDNS: " + sentence(err), wholeCluster})
	case len(zones) > 0:
		d.Findings = append(d.Findings, mergedFinding{
			ID: "stub-domain-bypassed", Severity: "warning",
			Why: "nodens sends names outside of the cluster domain to the upstreams of its zone ., past CoreDNS. What CoreDNS's Corefile says about these zones does not apply to them.",
			Do:  "Add a server block for each zone to nodens (config.extraServerBlocks of the chart), or send all names to CoreDNS (config.upstreamServers); see docs/install.md.",
			Seen: []observation{{fmt.Sprintf("CoreDNS has %s (ConfigMap %s), and nodens does not", strings.Join(zones, " "), strings.Join(configMaps, ", ")),
				nodesOf(pods)}},
		})
	}
}

func nodesOf(pods []corev1.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Spec.NodeName)
	}
	return names
}

// coreDNSPod returns a pod that service selects. If service has no selector (serr: why it
// was not read), it returns one with the labels that installers use.
func (c *cluster) coreDNSPod(ctx context.Context, service *corev1.Service, serr error) (*corev1.Pod, error) {
	namespace, selector := service.Namespace, labels.Set(service.Spec.Selector).String()
	if selector == "" { // this would select all pods
		namespace, selector = coreDNSNamespace, coreDNSSelector
	}
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector, Limit: 1})
	switch {
	case err != nil:
		return nil, err
	case len(list.Items) > 0:
		return &list.Items[0], nil
	}
	do := "compare CoreDNS's Corefile with that of nodens; see docs/install.md"
	if forbidden(serr) {
		do = "grant get on services: Service " + service.Name + " says which pods are CoreDNS"
	}
	return nil, fmt.Errorf("no pod in namespace %s has the labels %s: %s", namespace, selector, do)
}

// coreDNSZones returns the zones of CoreDNS's Corefile and the ConfigMaps that it
// mounts: none if its pod has no Corefile. See coreDNSPod for service and serr.
func (c *cluster) coreDNSZones(ctx context.Context, service *corev1.Service, serr error) (zones, configMaps []string, err error) {
	pod, err := c.coreDNSPod(ctx, service, serr)
	if err != nil {
		return nil, nil, err
	}
	files, configMaps, err := c.mountedFiles(ctx, pod)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Base(name) == "Corefile" {
			source := config.Source{Files: files, Dir: "/" + path.Dir(name), Getenv: func(string) string { return "" }}
			zones, err = config.ZonesOf("/"+name, string(files[name].Data), source)
			return zones, configMaps, err
		}
	}
	return nil, nil, nil
}

// mountedFiles returns the files of all ConfigMaps that the first container mounts, from
// the root, and the names of the ConfigMaps. It skips optional ones that do not exist.
func (c *cluster) mountedFiles(ctx context.Context, pod *corev1.Pod) (files fstest.MapFS, names []string, err error) {
	files = make(fstest.MapFS)
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || pod.Spec.Volumes[i].ConfigMap == nil {
			continue
		}
		of := pod.Spec.Volumes[i].ConfigMap
		cm, err := c.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && of.Optional != nil && *of.Optional {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		names = append(names, of.Name)
		for key, text := range cm.Data {
			files[path.Join(strings.TrimPrefix(m.MountPath, "/"), fileOf(of.Items, key))] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return files, names, nil
}

// anyState returns the state of the first pod that answers.
func (c *cluster) anyState(ctx context.Context, pods []corev1.Pod) (s *state.State, err error) {
	for i := range pods {
		var text []byte
		if text, err = c.ask(ctx, &pods[i], askState); err == nil {
			if s, err = state.Read(bytes.NewReader(text)); err == nil {
				return s, nil
			}
		}
	}
	return nil, err
}

// bypassed returns those of CoreDNS's zones whose names nodens looks up in its zone ".".
// It returns none if that zone forwards to the cluster's DNS: to one of clusterIPs, or to
// an upstream of the zone that has the names of the cluster's domain ("": unknown).
func bypassed(zones []string, s *state.State, domain string, clusterIPs []string) []string {
	own := make(map[string][]string) // addresses of upstreams by zone of nodens
	for _, z := range s.Zones {
		own[z.Name] = nil
	}
	for _, u := range s.Upstreams {
		for _, zone := range strings.Fields(u.Zone) {
			own[zone] = append(own[zone], u.Address)
		}
	}
	zoneOf := func(name string) string {
		for name != "" {
			if _, ok := own[name]; ok {
				return name
			}
			_, name, _ = strings.Cut(name, ".")
		}
		return "."
	}
	home := zoneOf(strings.ToLower(strings.TrimSuffix(cmp.Or(domain, "in-addr.arpa"), ".")) + ".")
	if domain == "" && home == "." {
		home = zoneOf("cluster.local.") // reverse zones are optional
	}
	cluster := own[home]
	for _, ip := range clusterIPs { // with kubernetes_endpoints, home has other addresses
		cluster = append(cluster, net.JoinHostPort(ip, "53"))
	}
	if slices.ContainsFunc(own["."], func(a string) bool { return slices.Contains(cluster, a) }) {
		return nil
	}
	return slices.DeleteFunc(zones, func(zone string) bool { return zone == "." || zoneOf(zone) != "." })
}
