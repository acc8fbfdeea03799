package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// store is the image storage of a test. Its settings make buildah and podman work in
// a container or a small VM: no overlay file system, no systemd, no higher limits.
type store struct {
	t       *testing.T
	options []string
	dir     string
}

func newStore(t *testing.T) *store {
	t.Helper()
	needRoot(t, "buildah", "podman", "runc", "catatonit")
	dir := t.TempDir()
	return &store{t: t, dir: dir, options: []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}}
}

// build runs deploy/image.sh in the repository at dir.
func (s *store) build(dir, image string, archs ...string) {
	s.t.Helper()
	cmd := exec.Command("./deploy/image.sh", append([]string{image, "v0.0.0-test"}, archs...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BUILDAH=buildah "+strings.Join(s.options, " "))
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("build %s: %v\n%s", image, err, out)
	}
}

// buildah runs a buildah command and returns its output.
func (s *store) buildah(args ...string) string {
	s.t.Helper()
	out, err := command(".", "buildah", append(s.options, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(out)
}
