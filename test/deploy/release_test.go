package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestRelease makes the release of a commit twice, in other directories and with other
// umasks: all files are the same. It makes one architecture, to be quick.
func TestRelease(t *testing.T) {
	s := newStore(t)
	here, there := s.release("022"), s.release("077")
	sums := readFile(t, filepath.Join(here, "SHA256SUMS"))
	if other := readFile(t, filepath.Join(there, "SHA256SUMS")); sums != other {
		t.Errorf("two releases differ:\n%s\n%s", sums, other)
	}
	for _, name := range []string{
		"nodens-0.0.0-linux-amd64.tar.gz", "nodens-0.0.0-linux-amd64.cdx.json", "nodens-0.0.0-image.oci.tar.gz", "nodens-0.0.0.tgz",
		"kubectl-nodens-0.0.0-linux-amd64.tar.gz", "kubectl-nodens-0.0.0-linux-amd64.cdx.json", "nodens-krew.yaml",
	} {
		if !strings.Contains(sums, "  "+name+"\n") {
			t.Errorf("%s is not in\n%s", name, sums)
		}
	}
	krew := readFile(t, filepath.Join(here, "nodens-krew.yaml"))
	for line := range strings.Lines(sums) {
		if sum, name, _ := strings.Cut(strings.TrimSpace(line), "  "); strings.HasPrefix(name, "kubectl") && strings.HasSuffix(name, ".gz") &&
			!(strings.Contains(krew, sum) && strings.Contains(krew, "/v0.0.0/"+name+"\n")) {
			t.Errorf("the krew manifest does not have %s with the checksum %s:\n%s", name, sum, krew)
		}
	}
	checkSBOM(t, filepath.Join(here, "nodens-0.0.0-linux-amd64.cdx.json"))
	checkSchema(t, readFile(t, filepath.Join(here, "kubectl-nodens-0.0.0-linux-amd64.cdx.json")))
}

// checkSBOM checks that an SBOM follows the schema, and lists the modules that go list
// knows for the daemon.
func checkSBOM(t *testing.T, file string) {
	t.Helper()
	text := readFile(t, file)
	checkSchema(t, text)
	var sbom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(strings.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&sbom); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range *sbom.Components {
		if c.Name != "std" {
			got = append(got, c.Name+" "+c.Version)
		}
	}
	out, err := command(root, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/nodens")
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Compact(slices.Sorted(slices.Values(strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }))))
	if slices.Sort(got); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the SBOM lists %q, the program needs %q", got, want)
	}
}

// schemaOfSBOM returns CycloneDX's schema, which is part of its Go module.
func schemaOfSBOM(t *testing.T) *jsonschema.Schema {
	t.Helper()
	dir, err := command(".", "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go")
	if err != nil {
		t.Fatal(err)
	}
	const base = "http://cyclonedx.org/schema/"
	c := jsonschema.NewCompiler()
	for name, file := range map[string]string{"bom-1.5.schema.json": "bom-1.5.schema.json", "spdx.schema.json": "spdx.schema.json", "jsf-0.82.schema.json": "jsf-0.82.schemax.json"} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(readFile(t, filepath.Join(strings.TrimSpace(dir), "schema", file))))
		if err == nil {
			err = c.AddResource(base+name, doc)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	schema, err := c.Compile(base + "bom-1.5.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// checkSchema checks that an SBOM follows the schema, and that the schema refuses another
// type of component.
func checkSchema(t *testing.T, sbom string) {
	t.Helper()
	schema := schemaOfSBOM(t)
	for text, valid := range map[string]bool{sbom: true, strings.Replace(sbom, `"library"`, `"nothing"`, 1): false} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err == nil {
			err = schema.Validate(doc)
		}
		if (err == nil) != valid {
			t.Errorf("valid %v, error %v", valid, err)
		}
	}
}

// release runs deploy/release.sh in a copy of the sources and returns its output folder.
func (s *store) release(umask string) string {
	s.t.Helper()
	dir := copyOfSources(s.t)
	cmd := exec.Command("sh", "-c", "umask "+umask+" && exec deploy/release.sh v0.0.0")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BUILDAH=buildah "+strings.Join(s.options, " "), "ARCHS=amd64", "PLUGIN_SYSTEMS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("release: %v\n%s", err, out)
	}
	return filepath.Join(dir, "dist")
}
