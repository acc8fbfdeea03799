// Package doctor examines how queries reach the daemon on a node, from the
// node's own network namespace and from that of a pod, and says what is wrong,
// why it matters and what to do.
//
// It only looks: it asks DNS questions and reads /proc, /sys, links and tc
// filters. It changes nothing but, while a pod behind socket redirection is
// examined, an empty cgroup of its own.
//
// The package is a leaf: it imports no other of this module. What the daemon's
// flags and Corefile say comes in as Config, and what only netsetup or bpf know
// through the functions in it; cmd/nodens wires them.
package doctor
