package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeInstall runs every command after a $ in the section Install of the README
// and compares its output with the README, if the README shows it.
func TestReadmeInstall(t *testing.T) {
	s, n := newStore(t), newNamespace(t, "host")
	needRoot(t, "make", "dig", "curl")
	env := append(os.Environ(), s.settings()...)
	t.Cleanup(func() {
		_, _ = n.shell(env, "podman rm --force --time 0 nodens")
	})
	section := regexp.MustCompile(`(?s)\n## Install\n(.*?)\n## `).FindStringSubmatch(readFile(t, root+"/README.md"))
	if section == nil {
		t.Fatal("README.md has no section Install")
	}
	steps := regexp.MustCompile(`(?m)^\$ (.*)\n((?:[^$\x60\n].*\n)*)`).FindAllStringSubmatch(section[1], -1)
	if len(steps) < 5 {
		t.Fatalf("%d commands in\n%s", len(steps), section[1])
	}
	for _, step := range steps {
		got, err := n.shell(env, step[1])
		if err != nil {
			t.Fatalf("%s: %v\n%s", step[1], err, got)
		}
		if want := strings.TrimSpace(step[2]); want != "" && strings.TrimSpace(got) != want {
			t.Errorf("%s prints %q, README.md has %q", step[1], got, want)
		}
	}
}

// shell runs a command line on the node in the root of the repository and returns its
// standard output, and its standard error too if it fails.
func (n *node) shell(env []string, line string) (string, error) {
	args := n.enter("sh", "-c", line)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = root, env
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out) + errs.String(), err
	}
	return string(out), nil
}

// settings returns an environment in which buildah and podman use the store without
// options.
func (s *store) settings() []string {
	s.t.Helper()
	storage := writeFile(s.t, filepath.Join(s.dir, "storage.conf"),
		"[storage]\ndriver = \"vfs\"\ngraphroot = \""+filepath.Join(s.dir, "root")+"\"\nrunroot = \""+filepath.Join(s.dir, "run")+"\"\n")
	containers := writeFile(s.t, filepath.Join(s.dir, "containers.conf"),
		"[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n")
	return []string{"CONTAINERS_STORAGE_CONF=" + storage, "CONTAINERS_CONF=" + containers}
}
