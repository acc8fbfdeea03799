// Package lab provides what tests with a network need: namespaces joined by veth
// pairs, cgroups, processes inside them, scripted and real DNS servers, and
// clients.
//
// A namespace is held by a file descriptor and has no name on the host. The
// kernel kills each process when the thread that started it ends. So a test
// binary that is killed leaves only files behind.
package lab
