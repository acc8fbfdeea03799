// Package migrate turns manifests of node-cache (NodeLocal DNSCache) into
// manifests of nodens, and says what stays, what changes and what will not work.
//
// It reads and writes YAML as a tree, so that order and comments stay; what is
// not touched is given back octet for octet.
//
// The package is a leaf: it imports no other of this module. What the daemon
// thinks of flags and of a Corefile comes in as Config.Check; cmd/nodens wires
// it.
package migrate
