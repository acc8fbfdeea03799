// Package hostmode tests nodens as a replacement of node-cache on one node: flags,
// published argument lists, start and stop order, surge upgrades, interception of a
// cluster IP, and leftovers on the host.
//
// Every test has its own network namespace. It starts nodens there as the kubelet
// does, with its own /etc.
package hostmode
