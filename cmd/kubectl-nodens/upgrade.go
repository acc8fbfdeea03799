package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	versions "k8s.io/apimachinery/pkg/util/version"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/config"
)

func upgradeCommand(c *cluster) *cobra.Command {
	var f format
	cmd := &cobra.Command{
		Use:   "upgrade-check",
		Short: "Check whether the cluster's settings work with this version of nodens",
		Long: `Compare the DaemonSet of nodens and the Corefile in its ConfigMap with what the
nodens of this plugin's version supports. It changes nothing.

Exit status: 0 nothing to do; 1 something to change first; 2 an error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.upgradeCheck(cmd.Context(), f) },
	}
	f.add(cmd)
	return cmd
}

// remark is a result of the check of one setting.
type remark struct {
	Object string `json:"object"`
	// Level is error (this version does not start), warning (lookups may fail during the
	// upgrade, or a setting has no effect) or note.
	Level string `json:"level"`
	Text  string `json:"text"`
}

func (c *cluster) upgradeCheck(ctx context.Context, f format) error {
	if err := c.connect(); err != nil {
		return err
	}
	list, err := c.client.AppsV1().DaemonSets(c.namespace()).List(ctx, metav1.ListOptions{LabelSelector: c.selector})
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("no DaemonSet in namespace %s has the labels %s: set --namespace and --selector", c.namespace(), c.selector)
	}
	if err != nil {
		return err
	}
	remarks := []remark{}
	for i := range list.Items {
		remarks = append(remarks, c.checkDaemonSet(ctx, &list.Items[i])...)
	}
	if f.data() {
		err = f.print(c.out, remarks)
	} else {
		rows := [][]string{{"LEVEL", "OBJECT", "WHAT TO KNOW"}}
		for _, r := range remarks {
			rows = append(rows, []string{r.Level, r.Object, r.Text})
		}
		err = table(c.out, rows)
	}
	if err == nil && slices.ContainsFunc(remarks, func(r remark) bool { return r.Level != "note" }) {
		return exitStatus(1)
	}
	return err
}

// checkDaemonSet returns the remarks about a DaemonSet and what it mounts.
func (c *cluster) checkDaemonSet(ctx context.Context, d *appsv1.DaemonSet) (all []remark) {
	object := "daemonset/" + d.Name
	add := func(level, format string, a ...any) {
		all = append(all, remark{object, level, fmt.Sprintf(format, a...)})
	}
	image := containerOf(d.Spec.Template.Spec).Image
	if newer(image) {
		add("warning", "image %s is newer than this plugin, %s: use the plugin of that version", image, version)
	} else {
		add("note", "image %s; this plugin checks for %s", image, version)
	}
	checkFlags(d, add)
	checkRollout(d, add)
	checkTier(d, add)
	return append(all, c.checkCorefile(ctx, d)...)
}

// newer reports whether the tag of an image is a later version than the plugin's.
func newer(image string) bool {
	_, tag, _ := strings.Cut(path.Base(image), ":")
	tag, _, _ = strings.Cut(tag, "@")
	theirs, err1 := versions.ParseSemantic(tag)
	ours, err2 := versions.ParseSemantic(version)
	return err1 == nil && err2 == nil && ours.LessThan(theirs)
}

func checkFlags(d *appsv1.DaemonSet, add func(level, format string, a ...any)) {
	var known []string
	for _, g := range cmdline.Daemon {
		known = append(known, g.Names...)
	}
	flags := flagsOf(d.Spec.Template.Spec)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		switch text := cmdline.InsteadOf(name); {
		case text != "":
			add("error", "the flag -%s was removed: %s", name, text)
		case !slices.Contains(known, name):
			add("error", "the flag -%s does not exist in this version", name)
		}
	}
}

func checkRollout(d *appsv1.DaemonSet, add func(level, format string, a ...any)) {
	s := d.Spec.UpdateStrategy
	switch r := s.RollingUpdate; {
	case s.Type == appsv1.OnDeleteDaemonSetStrategyType:
		add("warning", "updateStrategy is OnDelete: a node keeps its old nodens until its pod is deleted, and has none in between; use RollingUpdate with maxSurge 1")
	case r == nil || r.MaxSurge == nil || r.MaxSurge.String() == "0" || r.MaxSurge.String() == "0%":
		add("warning", "maxSurge is 0: a node has no nodens between its old pod and the new one; set maxSurge 1 and maxUnavailable 0")
	}
	if u, want := d.Status.UpdatedNumberScheduled, d.Status.DesiredNumberScheduled; u < want {
		add("warning", "a rollout is in progress: %d of %d nodes have the new pod", u, want)
	}
	if n := d.Status.NumberUnavailable; n > 0 {
		add("warning", "nodes without a ready pod: %d; repair them first", n)
	}
}

// checkTier compares the capabilities of the pod with those of the chart's tiers.
func checkTier(d *appsv1.DaemonSet, add func(level, format string, a ...any)) {
	var caps []corev1.Capability
	if s := containerOf(d.Spec.Template.Spec).SecurityContext; s != nil && s.Capabilities != nil {
		caps = s.Capabilities.Add
	}
	tier := "minimal"
	switch {
	case slices.Contains(caps, "SYS_ADMIN"):
		tier = "full"
	case slices.Contains(caps, "BPF"):
		tier = "resilient"
	}
	add("note", "the pod has the capabilities of the tier %s; if the chart's values do not set the tier, add tier: %s, or the chart may choose another", tier, tier)
}

// checkCorefile parses the Corefile that the pods mount, as nodens check does.
func (c *cluster) checkCorefile(ctx context.Context, d *appsv1.DaemonSet) []remark {
	spec := d.Spec.Template.Spec
	flags := flagsOf(spec)
	file, name, files, err := c.corefile(ctx, d.Namespace, spec, flags)
	if err != nil {
		return []remark{{"daemonset/" + d.Name, "warning", "the Corefile was not checked: " + sentence(err)}}
	}
	var all []remark
	add := func(level string, err error) {
		for _, p := range config.Problems(err) {
			all = append(all, remark{"configmap/" + name, level, strings.TrimPrefix(fmt.Sprintf("line %d: %s: %s", p.Line, p.Directive, p.Text), "line 0: : ")})
		}
	}
	text := string(files[strings.TrimPrefix(file, "/")].Data)
	if file == path.Clean(baseCorefile(flags)) {
		if text, err = render(file, text, flags); err != nil {
			add("error", err)
			return all
		}
	}
	cfg, err := config.Parse(file, text, config.Source{Files: files, Dir: "/", Getenv: environment(spec)})
	if err == nil {
		add("warning", errors.Join(cfg.Warnings...))
		err = errors.Join(cfg.Overlap(53), cfg.Loops(53))
	}
	add("error", err)
	return all
}

func baseCorefile(flags map[string]string) string {
	if f, ok := flags["basecorefile"]; ok {
		return f
	}
	return "/etc/coredns/Corefile.base"
}

// corefile finds the Corefile among the ConfigMaps that the pod mounts. It returns its
// path, the name of its ConfigMap, and the files of that ConfigMap.
func (c *cluster) corefile(ctx context.Context, namespace string, spec corev1.PodSpec, flags map[string]string) (file, name string, files fstest.MapFS, err error) {
	for _, file := range []string{baseCorefile(flags), flags["conf"], flags["corefile"], "/etc/Corefile"} {
		volume, rest, ok := mounted(spec, file)
		if !ok || volume.ConfigMap == nil {
			continue
		}
		m, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return "", "", nil, err
		}
		if _, ok := m.Data[keyOf(volume.ConfigMap.Items, rest)]; !ok {
			continue
		}
		files := make(fstest.MapFS)
		dir := strings.TrimPrefix(strings.TrimSuffix(file, rest), "/")
		for key, text := range m.Data {
			files[path.Join(dir, fileOf(volume.ConfigMap.Items, key))] = &fstest.MapFile{Data: []byte(text)}
		}
		return path.Clean(file), m.Name, files, nil
	}
	return "", "", nil, errors.New("no ConfigMap that the pod mounts has it")
}

// fileOf is the inverse of keyOf.
func fileOf(items []corev1.KeyToPath, key string) string {
	for _, item := range items {
		if item.Key == key {
			return item.Path
		}
	}
	return key
}

// render replaces node-cache's placeholders. The address of the cluster's DNS is an
// example, which the check does not query.
func render(file, text string, flags map[string]string) (string, error) {
	t := config.Template{
		DNSPort: 53, ClusterDNS: netip.AddrFrom4([4]byte{192, 0, 2, 1}), ClusterDomain: "cluster.local", PrometheusEndpoint: ":9253",
	}
	if ips := flags["localip"]; ips != "" {
		var err error
		if t.LocalIPs, err = config.ParseHostAddrs(ips); err != nil {
			return "", fmt.Errorf("-localip: %w", err)
		}
	}
	return t.Render(file, text)
}

// environment returns the variables that the manifest gives nodens.
func environment(spec corev1.PodSpec) func(string) string {
	return func(name string) string {
		for _, e := range containerOf(spec).Env {
			if e.Name == name {
				return e.Value
			}
		}
		return ""
	}
}
