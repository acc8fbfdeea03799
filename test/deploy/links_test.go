package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinks checks that links between documents have a target, and that the README
// links to every document.
func TestLinks(t *testing.T) {
	docs, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatalf("%d documents, error %v", len(docs), err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`) // without a scheme
	readme := readFile(t, root+"/README.md")
	for _, doc := range docs {
		if !strings.Contains(readme, "(docs/"+filepath.Base(doc)+")") {
			t.Errorf("README.md does not link to docs/%s", filepath.Base(doc))
		}
	}
	for _, doc := range append(docs, root+"/README.md", root+"/CONTRIBUTING.md", root+"/SECURITY.md") {
		for _, m := range link.FindAllStringSubmatch(readFile(t, doc), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s: the target of the link %s does not exist", filepath.Base(doc), m[1])
			}
		}
	}
}
