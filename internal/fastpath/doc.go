// Package fastpath decides where the kernel answers DNS queries by itself, and
// controls package bpf's program that does. It attaches the program to the host's
// ends of pods' veths as they come and go, gives leases to the clients that the
// daemon's sockets hear, and reports the state.
package fastpath
