package redirect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/tick"
)

// DefaultPodLogs is the directory in which the kubelet makes a directory
// NAMESPACE_POD_UID for each pod, before the pod's first container runs. It names
// pods without a request to the API server.
const DefaultPodLogs = "/var/log/pods"

// optOut keeps the pods with the given names out of redirection. Only one
// goroutine at a time may use it.
type optOut struct {
	kernel   *bpf.Redirect
	status   *status
	kubepods string // directory
	podLogs  string // directory
	names    []config.PodName
}

// sync opts out the pods that have the names now, and no others.
func (o *optOut) sync() error {
	wanted, err := OptedOut(o.kubepods, o.podLogs, o.names)
	if err != nil {
		return err
	}
	have, err := o.kernel.OptedOut()
	if err != nil {
		return err
	}
	var errs []error
	for id := range wanted {
		if !slices.Contains(have, id) {
			errs = append(errs, o.kernel.OptOut(id))
		}
	}
	for _, id := range have {
		if !wanted[id] {
			errs = append(errs, o.kernel.OptIn(id))
		}
	}
	return errors.Join(errs...)
}

// follow syncs as pods come and go, until ctx is done.
func (o *optOut) follow(ctx context.Context) {
	const again = 10 * time.Second // without events from the kernel
	if len(o.names) == 0 {
		return
	}
	timer := tick.Every(again)
	defer timer.Stop()
	var events <-chan fsnotify.Event
	var lost <-chan error
	w, err := fsnotify.NewWatcher()
	if err != nil {
		o.status.log.Warn("cannot watch for pods that opt out: nodens checks at intervals", "interval", again, "error", err)
	} else {
		defer w.Close()
		events, lost = w.Events, w.Errors
	}
	reason := ""
	for {
		if w != nil {
			for _, dir := range append(podParents(o.kubepods), o.podLogs) {
				_ = w.Add(dir) // adding it twice is no error; the ticks cover a failure
			}
		}
		reason = o.status.errorOnce(reason, "pods that opt out may be redirected", o.sync())
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-events:
		case <-lost: // an overflow of events, usually
		}
	}
}

// Pods returns the names of pods by their cgroup directories. The name of a pod without a
// directory of logs is empty. kubepods and podLogs are directories, see DefaultPodLogs.
func Pods(kubepods, podLogs string) (map[string]config.PodName, error) {
	names, err := podNames(podLogs)
	if err != nil {
		return nil, fmt.Errorf("find names of pods: %w", err)
	}
	pods := make(map[string]config.PodName)
	for _, parent := range podParents(kubepods) {
		entries, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			return nil, fmt.Errorf("find cgroups of pods: %w", err)
		}
		for _, e := range entries {
			if uid, ok := podUID(e.Name()); ok {
				pods[filepath.Join(parent, e.Name())] = names[uid]
			}
		}
	}
	return pods, nil
}

// OptedOut returns the ids of the cgroups of the pods that have one of the names.
// kubepods and podLogs are directories, see DefaultPodLogs.
func OptedOut(kubepods, podLogs string, names []config.PodName) (map[uint64]bool, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pods, err := Pods(kubepods, podLogs)
	if err != nil {
		err = fmt.Errorf("find pods that opt out: %w", err)
	}
	ids := make(map[uint64]bool)
	for dir, pod := range pods {
		var st syscall.Stat_t
		if slices.ContainsFunc(names, func(n config.PodName) bool { return n.Covers(pod) }) && syscall.Lstat(dir, &st) == nil { // else removed meanwhile
			ids[st.Ino] = true
		}
	}
	return ids, err
}

// podNames returns the names of pods by their UIDs.
func podNames(podLogs string) (map[string]config.PodName, error) {
	entries, err := os.ReadDir(podLogs)
	if err != nil {
		return nil, err
	}
	names := make(map[string]config.PodName)
	for _, e := range entries {
		// No part contains an underscore: RFC 1123.
		if part := strings.Split(e.Name(), "_"); len(part) == 3 {
			names[part[2]] = config.PodName{Namespace: part[0], Name: part[1]}
		}
	}
	return names, nil
}

// podParents returns the directories that contain pods' cgroups: kubepods, and the cgroups
// of the QoS classes.
func podParents(kubepods string) []string {
	dirs := []string{kubepods}
	entries, err := os.ReadDir(kubepods)
	if err != nil {
		return dirs
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() && (name == "burstable" || name == "besteffort" ||
			strings.HasSuffix(name, "-burstable.slice") || strings.HasSuffix(name, "-besteffort.slice")) {
			dirs = append(dirs, filepath.Join(kubepods, name))
		}
	}
	return dirs
}

// podUID returns the UID in the name of a pod's cgroup: pod<UID>, or, with underscores in
// the UID, kubepods[-QOS]-pod<UID>.slice.
func podUID(name string) (string, bool) {
	slice, systemd := strings.CutSuffix(name, ".slice")
	if !systemd {
		return strings.CutPrefix(name, "pod")
	}
	i := strings.LastIndex(slice, "-pod")
	if i < 0 {
		return "", false
	}
	return strings.ReplaceAll(slice[i+len("-pod"):], "_", "-"), true
}
