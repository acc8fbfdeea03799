package fastpath

import (
	"os"
	"os/exec"
	"testing"
)

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
