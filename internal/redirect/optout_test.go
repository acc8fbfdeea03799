package redirect

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

const (
	uidA = "0b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e01"
	uidB = "1b0e8f5e-4f52-4cf0-9b1d-6d4b4d5b8e02"
	uidC = "2d9f1e0c5a7b4c3d8e6f0a1b2c3d4e5f" // a static pod's
)

func TestPodNames(t *testing.T) {
	logs := t.TempDir()
	mkdirs(t, logs, "team-a_vpn-0_"+uidA, "team-a_web-1_"+uidB, "kube-system_etcd-node.1_"+uidC, "odd", "team-a_x_y_z")
	for _, tc := range []struct {
		names []config.PodName
		want  []string
	}{
		{[]config.PodName{{Namespace: "team-a"}}, []string{uidA, uidB}},
		{[]config.PodName{{Namespace: "team-a", Name: "vpn-0"}, {Namespace: "kube-system", Name: "etcd-node.1"}}, []string{uidA, uidC}},
		{[]config.PodName{{Namespace: "team"}, {Namespace: "team-a", Name: "vpn"}}, nil},
	} {
		pods, err := podNames(logs)
		var got []string
		for uid, pod := range pods {
			if slices.ContainsFunc(tc.names, func(n config.PodName) bool { return n.Covers(pod) }) {
				got = append(got, uid)
			}
		}
		if slices.Sort(got); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v, %v, want %v", tc.names, got, err, tc.want)
		}
	}
	if _, err := podNames(filepath.Join(logs, "none")); err == nil {
		t.Error("a missing directory is no error")
	}
}

// TestOptedOut: the cgroups of pods of every QoS class are found, with
// the names of both cgroup drivers. Other cgroups are not found.
func TestOptedOut(t *testing.T) {
	logs := t.TempDir()
	mkdirs(t, logs, "ns_0_"+uidA, "ns_1_"+uidB, "ns_2_"+uidC)
	under := func(uid string) string {
		return uid[:8] + "_" + uid[9:13] + "_" + uid[14:18] + "_" + uid[19:23] + "_" + uid[24:]
	}
	for driver, dirs := range map[string][3]string{
		"cgroupfs":    {"pod" + uidA, "burstable/pod" + uidB, "besteffort/pod" + uidC},
		"systemd":     {"kubepods-pod" + under(uidA) + ".slice", "kubepods-burstable.slice/kubepods-burstable-pod" + under(uidB) + ".slice", "kubepods-besteffort.slice/kubepods-besteffort-pod" + uidC + ".slice"},
		"cgroup root": {"kubelet-kubepods-pod" + under(uidA) + ".slice", "kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod" + under(uidB) + ".slice", "kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + uidC + ".slice"},
	} {
		kubepods := t.TempDir()
		mkdirs(t, kubepods, dirs[:]...)
		mkdirs(t, kubepods, "other", dirs[0]+"/pod"+uidC)
		for i, dir := range dirs {
			got, err := OptedOut(kubepods, logs, []config.PodName{{Namespace: "ns", Name: strconv.Itoa(i)}})
			want := map[uint64]bool{inodeOf(t, filepath.Join(kubepods, dir)): true}
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%s, %s: %v, %v, want %v", driver, dir, got, err, want)
			}
		}
	}
	if got, err := OptedOut(filepath.Join(t.TempDir(), "none"), logs, []config.PodName{{Namespace: "ns"}}); err != nil || len(got) != 0 {
		t.Errorf("no kubepods: %v, %v", got, err)
	}
}

func mkdirs(t *testing.T, parent string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.MkdirAll(filepath.Join(parent, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func inodeOf(t *testing.T, dir string) uint64 {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%T", info.Sys())
	}
	return st.Ino
}
