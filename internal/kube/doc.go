// Package kube reads the endpoints of one Service from the API server: the CoreDNS
// pods of the cluster's DNS.
//
// It lists and watches one resource over HTTPS and decodes only the fields that
// it uses. It needs this role in the Service's namespace:
//
//	apiGroups: ["discovery.k8s.io"]
//	resources: ["endpointslices"]
//	verbs: ["list", "watch"]
//
// Nothing waits for the API server. If it fails, the last known endpoints stay.
package kube
