package main

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// containerOf returns nodens's container of a pod.
func containerOf(spec corev1.PodSpec) corev1.Container {
	i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if i < 0 {
		return corev1.Container{}
	}
	return spec.Containers[i]
}

// flagsOf returns the flags of nodens's command line with their values. It skips
// arguments that do not begin with a dash.
func flagsOf(spec corev1.PodSpec) map[string]string {
	flags := make(map[string]string)
	c := containerOf(spec)
	last := ""
	for _, arg := range slices.Concat(c.Command, c.Args) {
		name, isFlag := strings.CutPrefix(arg, "-")
		if !isFlag {
			if _, ok := flags[last]; ok && flags[last] == "" {
				flags[last] = arg
			}
			last = ""
			continue
		}
		name, value, _ := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		flags[name], last = value, name
	}
	return flags
}

// mounted returns the volume that has a file of nodens's container, and the file's path
// in it.
func mounted(spec corev1.PodSpec, file string) (volume corev1.Volume, rest string, ok bool) {
	for _, m := range containerOf(spec).VolumeMounts {
		in, inside := strings.CutPrefix(file, strings.TrimSuffix(m.MountPath, "/")+"/")
		switch {
		case file == m.MountPath && m.SubPath != "":
			in = m.SubPath
		case !inside || m.SubPath != "":
			continue
		}
		i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i >= 0 {
			return spec.Volumes[i], in, true
		}
	}
	return volume, "", false
}
