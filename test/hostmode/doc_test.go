// Package hostmode holds nodens to its promise of a drop-in for node-cache on
// one node: flags, published argument lists, start and stop order, surge
// upgrades, interception of a cluster IP, and what is left behind.
//
// Every test has its own network namespace, in which nodens is started as the
// kubelet would, with an /etc of its own.
package hostmode
