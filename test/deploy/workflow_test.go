package deploy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestWorkflow checks that the workflow and .ci/run run the same targets of the
// Makefile.
func TestWorkflow(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Strategy struct {
				Matrix struct{ Target []string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(readFile(t, root+"/.github/workflows/ci.yml")), &workflow); err != nil {
		t.Fatal(err)
	}
	got := workflow.Jobs["check"].Strategy.Matrix.Target
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^make (\S+)$`).FindAllStringSubmatch(readFile(t, root+"/.ci/run"), -1) {
		if m[1] != "build" { // the first step of every job
			want = append(want, m[1])
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the workflow runs %v, .ci/run %v", got, want)
	}
	makefile := readFile(t, root+"/Makefile")
	for _, target := range got {
		if !strings.Contains(makefile, "\n"+target+":") {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
}
