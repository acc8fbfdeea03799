// Package kube learns the endpoints of one Service from the API server: the
// CoreDNS pods behind the cluster's DNS.
//
// It speaks list and watch over HTTPS itself, for one resource, with the few
// fields that it reads. The role that it needs, in the Service's namespace:
//
//	apiGroups: ["discovery.k8s.io"]
//	resources: ["endpointslices"]
//	verbs: ["list", "watch"]
//
// Nothing waits for the API server, and nothing is lost with it: what was
// learnt last stays.
package kube
