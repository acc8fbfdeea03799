package deploy

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inspected is the output of buildah inspect.
type inspected struct {
	FromImageID string
	OCIv1       struct {
		Architecture string `json:"architecture"`
		Config       struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		} `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
}

func (s *store) inspect(image string) (i inspected) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.buildah("inspect", "--type", "image", image)), &i); err != nil {
		s.t.Fatal(err)
	}
	return i
}

// TestImage checks that a commit gives the same image in every directory.
func TestImage(t *testing.T) {
	s := newStore(t)
	s.build(root, "localhost/nodens:here", "amd64")
	s.build(copyOfSources(t), "localhost/nodens:there", "amd64")
	here, there := s.inspect("localhost/nodens:here"), s.inspect("localhost/nodens:there")
	if here.FromImageID != there.FromImageID {
		t.Errorf("two builds differ:\n%+v\n%+v", here, there)
	}
	c := here.OCIv1.Config
	if c.Labels["org.opencontainers.image.version"] != "v0.0.0-test" || !slices.Equal(c.Entrypoint, []string{"/nodens"}) || c.User != "" {
		t.Errorf("config %+v", c)
	}
	if got := s.files("localhost/nodens:here"); !slices.Equal(got, []string{"-rw-r--r-- LICENSE", "-rwxr-xr-x nodens", "dtrwxrwxrwx tmp"}) {
		t.Errorf("the image has the files %v", got)
	}
}

// TestImageArchitectures checks that the list has a static program for amd64 and for arm64.
func TestImageArchitectures(t *testing.T) {
	s := newStore(t)
	s.build(root, "localhost/nodens:list", "amd64", "arm64")
	var list struct {
		Manifests []struct {
			Digest   string
			Platform struct{ Architecture string }
		}
	}
	if err := json.Unmarshal([]byte(s.buildah("manifest", "inspect", "localhost/nodens:list")), &list); err != nil {
		t.Fatal(err)
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, m := range list.Manifests {
		program := s.program("localhost/nodens@" + m.Digest)
		if program.Machine != want[m.Platform.Architecture] {
			t.Errorf("%s: the program is for %v", m.Platform.Architecture, program.Machine)
		}
		for _, p := range program.Progs {
			if p.Type == elf.PT_INTERP {
				t.Errorf("%s: the program is not static", m.Platform.Architecture)
			}
		}
		delete(want, m.Platform.Architecture)
	}
	if len(want) > 0 {
		t.Errorf("missing in the list: %v", want)
	}
}

// copyOfSources copies the tracked files and the history to another directory.
func copyOfSources(t *testing.T) string {
	t.Helper()
	files, err := command(root, "git", "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for f := range strings.Lines(files) {
		f = strings.TrimSuffix(f, "\n")
		b, err := os.ReadFile(filepath.Join(root, f))
		if os.IsNotExist(err) {
			continue // deleted but not committed
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, f)
		info, err := os.Stat(filepath.Join(root, f))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, b, info.Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	gitDir, err := command(root, "git", "rev-parse", "--absolute-git-dir")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, ".git"), "gitdir: "+gitDir)
	return dir
}

// mounted calls f with a directory where the image is mounted.
func (s *store) mounted(image string, f func(dir string)) {
	s.t.Helper()
	container := s.buildah("from", "--pull-never", image)
	defer s.buildah("rm", container)
	f(s.buildah("mount", container))
}

func (s *store) files(image string) (names []string) {
	s.t.Helper()
	s.mounted(image, func(dir string) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				s.t.Fatal(err)
			}
			names = append(names, info.Mode().String()+" "+e.Name())
		}
	})
	return names
}

func (s *store) program(image string) (program *elf.File) {
	s.t.Helper()
	s.mounted(image, func(dir string) {
		b, err := os.ReadFile(filepath.Join(dir, "nodens"))
		if err != nil {
			s.t.Fatal(err)
		}
		if program, err = elf.NewFile(bytes.NewReader(b)); err != nil {
			s.t.Fatal(err)
		}
	})
	return program
}
