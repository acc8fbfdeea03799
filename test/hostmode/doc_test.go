// Package hostmode tests nodens as a drop-in for node-cache on one node: flags,
// published argument lists, start and stop order, surge upgrades, interception of
// a cluster IP, and what remains after the end.
//
// Every test has its own network namespace. It starts nodens there as the kubelet
// does, with its own /etc.
package hostmode
