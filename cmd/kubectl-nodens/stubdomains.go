package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	zones, configMaps, err := c.coreDNSZones(ctx)
	if err == nil && len(zones) > 0 {
		var s *state.State
		if s, err = c.anyState(ctx, pods); err == nil {
			zones = bypassed(zones, s)
		}
	}
	switch {
	case err != nil:
		d.Unexamined = append(d.Unexamined, observation{"the stub domains of CoreDNS: " + sentence(err), []string{"cluster"}})
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

// coreDNSZones returns the zones of CoreDNS's Corefile and the ConfigMaps that it
// mounts: none if no pod has a Corefile.
func (c *cluster) coreDNSZones(ctx context.Context) (zones, configMaps []string, err error) {
	list, err := c.client.CoreV1().Pods(coreDNSNamespace).List(ctx, metav1.ListOptions{LabelSelector: coreDNSSelector, Limit: 1})
	if err != nil || len(list.Items) == 0 {
		return nil, nil, err
	}
	files, configMaps, err := c.mountedFiles(ctx, list.Items[0].Spec)
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
func (c *cluster) mountedFiles(ctx context.Context, spec corev1.PodSpec) (files fstest.MapFS, names []string, err error) {
	files = make(fstest.MapFS)
	for _, m := range spec.Containers[0].VolumeMounts {
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || spec.Volumes[i].ConfigMap == nil {
			continue
		}
		of := spec.Volumes[i].ConfigMap
		cm, err := c.client.CoreV1().ConfigMaps(coreDNSNamespace).Get(ctx, of.Name, metav1.GetOptions{})
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
// It returns none if that zone and the reverse zones share an upstream: this is CoreDNS.
func bypassed(zones []string, s *state.State) []string {
	own := make(map[string][]string) // addresses of upstreams by zone of nodens
	for _, z := range s.Zones {
		own[z.Name] = nil
	}
	for _, u := range s.Upstreams {
		for _, zone := range strings.Fields(u.Zone) {
			own[zone] = append(own[zone], u.Address)
		}
	}
	if slices.ContainsFunc(own["."], func(a string) bool { return slices.Contains(own["in-addr.arpa."], a) }) {
		return nil
	}
	delete(own, ".")
	return slices.DeleteFunc(zones, func(zone string) bool {
		for name := range own {
			if zone == name || strings.HasSuffix(zone, "."+name) {
				return true
			}
		}
		return zone == "."
	})
}
