// Package supervise restarts a worker process from a small supervisor process.
//
// # The two processes
//
// The supervisor, Run, starts the worker, forwards signals to it and exits with
// its exit status. It restarts a worker that dies after its first heartbeat, at
// once or after a delay that grows with every death. If the worker ends before
// its first heartbeat, the supervisor ends too: a configuration error ends the
// program as it does without a supervisor. As PID 1 it also reaps orphans.
//
// The worker, Attach, sends a heartbeat after every answer that came through its
// whole serving path. If the supervisor has ended, the worker must stop: whoever
// started the supervisor may start the program again.
//
// # Heartbeat timeouts
//
// The supervisor acts on missing heartbeats in two stages. First, after the kernel
// has begun to redirect new lookups elsewhere, it disconnects the clients that wait
// for the worker's answer (Config.Disconnect). Nothing is lost if the worker
// recovers. Second, after Config.Timeout, it kills and reaps the worker and only
// then starts the next one: two workers never share a port.
//
// Only time in which the supervisor itself runs counts. A suspended machine does
// not make its worker hung. A worker whose threads wait for a CPU for most of the time
// gets up to ten times Config.Timeout: the next worker would wait, too.
package supervise
