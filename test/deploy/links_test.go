package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinks holds links between documents to lead somewhere, and the README to
// lead to every document.
func TestLinks(t *testing.T) {
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("%d documents, error %v", len(docs), err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`) // none with a scheme
	readme := readFile(t, root+"/README.md")
	for _, doc := range docs {
		if !strings.Contains(readme, "(docs/"+filepath.Base(doc)+")") {
			t.Errorf("README.md does not lead to docs/%s", filepath.Base(doc))
		}
	}
	for _, doc := range append(docs, root+"/README.md", root+"/CONTRIBUTING.md", root+"/SECURITY.md") {
		for _, m := range link.FindAllStringSubmatch(readFile(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s: a link to %s leads nowhere", filepath.Base(doc), m[1])
			}
		}
	}
}
