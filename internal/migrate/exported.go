package migrate

import "strings"

// exported removes the fields that the API server has filled in: the manifest comes
// from kubectl get, and kubectl apply would refuse or ignore them.
func (m *migration) exported() {
	for _, d := range m.documents {
		for _, o := range d.objects {
			var gone []string
			meta := child(o.Node, "metadata")
			for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields"} {
				if meta != nil && remove(meta, key) {
					gone = append(gone, "metadata."+key)
				}
			}
			if annotations := child(meta, "annotations"); annotations != nil {
				for _, key := range []string{"kubectl.kubernetes.io/last-applied-configuration", "deprecated.daemonset.template.generation"} {
					if remove(annotations, key) {
						gone = append(gone, "the annotation "+key)
					}
				}
				if len(annotations.Content) == 0 {
					remove(meta, "annotations")
				}
			}
			if remove(o.Node, "status") {
				gone = append(gone, "status")
			}
			if len(gone) > 0 {
				d.edited = true
				m.changed("%s: %s removed: the API server fills them in", o, strings.Join(gone, ", "))
			}
		}
	}
}
