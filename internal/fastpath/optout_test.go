package fastpath

import (
	"os"
	"os/exec"
	"testing"

	"github.com/nodens-dns/nodens/internal/config"
)

// TestUnknownPods: if some pods opt out, the kernel answers only pods whose names are
// known.
func TestUnknownPods(t *testing.T) {
	const web, vpn, nameless, none = 1, 2, 3, 4 // network namespaces
	pods := map[int]config.PodName{web: {Namespace: "team-b", Name: "web-0"}, vpn: {Namespace: "team-a", Name: "vpn-0"}, nameless: {}}
	some, all := Plan{OptOut: []config.PodName{{Namespace: "team-a"}}}.optOut(pods), Plan{}.optOut(nil)
	for netns, want := range map[int]bool{web: true, vpn: false, nameless: false, none: false} {
		if some(netns) != want || !all(netns) {
			t.Errorf("namespace %d: allowed %t with opt_out, want %t; %t without, want true", netns, some(netns), want, all(netns))
		}
	}
}

// TestEndedProcess: a process that ends while pods are looked up does not make the
// lookup of all pods fail.
func TestEndedProcess(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if _, known, err := netnsOf(cmd.Process.Pid); known || err != nil {
		t.Errorf("ended process: known %t, error %v", known, err)
	}
	if _, known, err := netnsOf(os.Getpid()); !known || err != nil {
		t.Errorf("running process: known %t, error %v", known, err)
	}
}
