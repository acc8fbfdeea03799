// Package redirect decides which sockets of pods are redirected to the daemon,
// and keeps package bpf's programs doing so: it plans services and targets,
// checks that the targets answer, sends heartbeats, and reports the state.
package redirect
