// Package migrate turns manifests of node-cache (NodeLocal DNSCache) into
// manifests of nodens. It reports what stays, what changes and what does not work.
//
// It edits YAML as a tree, which keeps order and comments. Documents that it does
// not change are copied byte for byte.
//
// The package imports no other package of this module. The caller checks flags and
// Corefile with Config.Check.
package migrate
