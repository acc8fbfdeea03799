// Package deploy tests what is deployed: the image, the chart and its examples,
// the manifest rendered from it, alerts and dashboard. It is a module of its own,
// so that Helm, the API types and PromQL stay out of nodens' go.mod.
package deploy
