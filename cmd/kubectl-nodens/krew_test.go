package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// release.sh makes an archive and a checksum for each platform of the krew manifest.
func TestKrewManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/krew.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Spec struct {
			Platforms []struct {
				Selector struct {
					MatchLabels struct{ OS, Arch string }
				}
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, p := range m.Spec.Platforms {
		l := p.Selector.MatchLabels
		seen[l.OS+" "+l.Arch] = true
		archive := fmt.Sprintf("/v{{VERSION}}/kubectl-nodens-{{VERSION}}-%s-%s.tar.gz", l.OS, l.Arch)
		if !strings.HasSuffix(p.URI, archive) || p.SHA256 != fmt.Sprintf("{{SHA256 %s %s}}", l.OS, l.Arch) || p.Bin != "kubectl-nodens" {
			t.Errorf("%+v", p)
		}
	}
	if len(seen) != 4 || len(m.Spec.Platforms) != 4 {
		t.Errorf("platforms %v", seen)
	}
}
