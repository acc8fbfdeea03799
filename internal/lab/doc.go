// Package lab builds what the tests of the whole program run in: network
// namespaces joined by veth pairs, processes inside them, scripted and real
// DNS servers, and clients.
//
// A namespace is held by a file descriptor and has no name on the host, and
// every process is killed by the kernel when the thread that started it ends:
// a test binary that is killed leaves files behind and nothing else.
package lab
