package deploy

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// TestMigrated checks that the output of nodens migrate is valid, and that a second
// pod of it can be scheduled on a node.
func TestMigrated(t *testing.T) {
	files, err := filepath.Glob("../../cmd/nodens/testdata/migrate/*.golden")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			found := 0
			for _, o := range decode(t, items(t, readFile(t, file))) {
				if ds, ok := o.(*apps.DaemonSet); ok {
					checkMigrated(t, ds)
					found++
				}
			}
			if found == 0 {
				t.Error("no DaemonSet")
			}
		})
	}
}

func checkMigrated(t *testing.T, ds *apps.DaemonSet) {
	t.Helper()
	p, c := ds.Spec.Template.Spec, ds.Spec.Template.Spec.Containers[0]
	if p.HostNetwork && len(c.Ports) > 0 && ds.Spec.UpdateStrategy.Type != apps.OnDeleteDaemonSetStrategyType {
		t.Errorf("host ports %v", c.Ports)
	}
	s := c.SecurityContext
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 {
		t.Errorf("security context %+v", s)
	}
	volumes := make(map[string]bool)
	for _, v := range p.Volumes {
		if volumes[v.Name] {
			t.Errorf("volume %s is given twice", v.Name)
		}
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("%s is mounted from a volume that does not exist", m.MountPath)
		}
	}
}

// items turns the items of a List into documents.
func items(t *testing.T, text string) string {
	t.Helper()
	var list struct {
		Kind  string
		Items []json.RawMessage
	}
	if err := yaml.Unmarshal([]byte(text), &list); err != nil || list.Kind != "List" {
		return text
	}
	var docs []string
	for _, i := range list.Items {
		doc, err := yaml.JSONToYAML(i)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, string(doc))
	}
	return strings.Join(docs, "---\n")
}
