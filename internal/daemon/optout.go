package daemon

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
)

// defaultPodLogs is where the kubelet makes a directory NAMESPACE_POD_UID for each
// pod, before the pod's first container runs. It names pods without asking the
// API server.
const defaultPodLogs = "/var/log/pods"

// syncOptOut leaves alone the pods that have opted out, as they are now. The
// caller holds mu.
func (r *redirector) syncOptOut() error {
	wanted := make(map[uint64]bool)
	if len(r.plan.settings.OptOut) > 0 {
		uids, err := optedOutPods(r.podLogs, r.plan.settings.OptOut)
		if err != nil {
			return fmt.Errorf("pods that opt out are not known: %w", err)
		}
		if wanted, err = podCgroups(r.kubepods, uids); err != nil {
			return fmt.Errorf("cgroups of pods that opt out: %w", err)
		}
	}
	have, err := r.bpf.OptedOut()
	if err != nil {
		return err
	}
	var errs []error
	for id := range wanted {
		if !slices.Contains(have, id) {
			errs = append(errs, r.bpf.OptOut(id))
		}
	}
	for _, id := range have {
		if !wanted[id] {
			errs = append(errs, r.bpf.OptIn(id))
		}
	}
	return errors.Join(errs...)
}

// optedOutPods returns the UIDs of the pods that any of the names means.
func optedOutPods(podLogs string, names []config.PodName) (map[string]bool, error) {
	entries, err := os.ReadDir(podLogs)
	if err != nil {
		return nil, err
	}
	uids := make(map[string]bool)
	for _, e := range entries {
		// No part has an underscore: RFC 1123.
		part := strings.Split(e.Name(), "_")
		if len(part) != 3 {
			continue
		}
		if slices.ContainsFunc(names, func(n config.PodName) bool {
			return n.Namespace == part[0] && (n.Name == "" || n.Name == part[1])
		}) {
			uids[part[2]] = true
		}
	}
	return uids, nil
}

// podCgroups returns the ids of pods' cgroups: below kubepods or below the one of
// their quality of service, pod<UID>, or kubepods[-QOS]-pod<UID>.slice with
// underscores in the UID.
func podCgroups(kubepods string, uids map[string]bool) (map[uint64]bool, error) {
	ids := make(map[uint64]bool)
	for _, dir := range podParents(kubepods) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			return nil, err
		}
		for _, e := range entries {
			uid, ok := podUID(e.Name())
			if !ok || !uids[uid] {
				continue
			}
			info, err := e.Info()
			if err != nil {
				continue // gone meanwhile
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				ids[st.Ino] = true
			}
		}
	}
	return ids, nil
}

// podParents are the directories in which pods' cgroups are.
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

// podUID reads it off the name of a pod's cgroup.
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

// followOptOut keeps to what has opted out as pods come and go, until ctx is done.
func (r *redirector) followOptOut(ctx context.Context) {
	const again = 10 * time.Second // where the kernel does not tell
	if len(r.current().settings.OptOut) == 0 {
		return
	}
	tick := time.NewTicker(again)
	defer tick.Stop()
	var events <-chan fsnotify.Event
	var lost <-chan error
	w, err := fsnotify.NewWatcher()
	if err != nil {
		r.log.Warn("pods that opt out are looked for every so often only", "interval", again, "error", err)
	} else {
		defer w.Close()
		events, lost = w.Events, w.Errors
	}
	failing := ""
	for {
		if w != nil {
			for _, dir := range append(podParents(r.kubepods), r.podLogs) {
				_ = w.Add(dir) // again is no error; what cannot be watched is left to the ticks
			}
		}
		failing = r.syncOptOutAgain(failing)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-events:
		case <-lost: // events, mostly
		}
	}
}

// syncOptOutAgain tells an error that is not the one before, and returns it.
func (r *redirector) syncOptOutAgain(before string) (now string) {
	r.locked(func(*bpf.Redirect) {
		err := r.syncOptOut()
		if err != nil && err.Error() != before {
			r.log.Error("pods that opt out may be redirected", "error", err)
			r.metrics.errors.Inc()
		}
		now = errorText(err)
	})
	return now
}
