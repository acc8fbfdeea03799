// Package bpf redirects sockets (Redirect), and answers queries of pods in the kernel
// (Fastpath). When a pod's socket connects or sends to a service's VIP, the kernel sends
// it to the daemon while the daemon is alive, and to a fallback while it is not. The
// application sees the VIP in both directions. The sections below are about Redirect.
//
// # Pins
//
// Programs, links and maps are pinned in a BPF file system, below a directory that
// is named after the version of the maps' layout. They outlive the process. The
// next process adopts them: it replaces each link's program atomically and uses the
// same maps, so that sockets that its predecessor redirected keep their
// translation.
//
// # Liveness
//
// The kernel decides for each lookup. The daemon is alive if two conditions hold.
// The canary, a socket of the process, is in a sockmap; the kernel removes it when
// the process ends. The heartbeat, a time in a memory-mapped array, is recent; it
// becomes old when the process hangs. Call Beat after an answer through the serving
// path, not from a timer.
//
// # Order of calls
//
// OpenRedirect, listen, check that the targets answer, Engage. When a process
// ends, the kernel closes the highest file descriptor first. That is the canary, so
// a client whose connection is reset reaches a fallback when it retries. To stop:
// Withdraw, drain, Close. Everything stays pinned until Teardown.
package bpf
