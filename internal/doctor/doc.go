// Package doctor examines how queries reach the daemon on a node, from the
// network namespaces of the node and of a pod. It reports what is wrong, why it
// matters and what to do.
//
// It sends DNS queries and reads /proc, /sys, links and tc filters. It changes
// nothing, except that it creates an empty cgroup while it examines a pod with
// socket redirection.
//
// The package is a leaf: it imports no other package of this module. The caller
// passes the daemon's settings as Config, and access to netsetup and bpf as
// functions in it.
package doctor
