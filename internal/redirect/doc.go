// Package redirect decides which sockets of pods are redirected to the daemon, and
// controls package bpf. It plans services and targets, checks that the targets
// answer, sends heartbeats, and reports the state.
package redirect
