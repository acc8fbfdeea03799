// Package deploy tests the image, the chart and its examples, the manifest, the
// alerts and the dashboard. It is a separate module, which keeps Helm, the Kubernetes
// API types and PromQL out of the go.mod of nodens.
package deploy
