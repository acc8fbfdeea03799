package bpf

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// A process that ends meanwhile is no error.
func TestOpenOnceOfEndingProcesses(t *testing.T) {
	for range 500 {
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		path := fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
		for running := true; running; {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
				running = false
			default:
			}
			if _, err := openOnce(make(map[uint64]bool), path, func(*os.File) bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
	}
}
