// Package bpf redirects sockets: a pod's socket that connects or sends to a
// service's VIP goes to the daemon while that is alive, and straight to a
// fallback while it is not. The application sees the VIP in both directions.
//
// # What outlives the process
//
// Programs, links and maps are pinned in a bpffs, below a directory that is
// named by the shape of the maps. The next process adopts them: it swaps each
// link's program atomically and goes on with the same maps, so that sockets that
// were redirected by the predecessor keep their translation.
//
// # Alive
//
// The kernel decides per look-up, by two signs together: the canary, a socket of
// this process in a sockmap, which the kernel takes out when the process ends;
// and the heartbeat, a time in a memory-mapped array, which stops when the
// process hangs. Beat is to be called by who has seen an answer come through the
// serving path, not by a timer.
//
// # Order
//
// OpenRedirect, listen, ask oneself, Attach, Alive. At the end of a process the
// kernel closes the highest descriptor first: that is the canary's, so that who
// sees a connection reset finds the daemon gone when it tries again. To stop:
// Withdraw, drain, Close. Everything stays pinned until Teardown.
package bpf
