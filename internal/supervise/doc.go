// Package supervise keeps a worker process running, from a small process that
// outlives it.
//
// # The two processes
//
// The supervisor, Run, starts the worker, hands signals on to it, and takes the
// worker's exit status for its own. A worker that dies after it has beaten is
// started again, at once or after a pause that grows with every death; one that
// ends before its first beat is not, so that an error of configuration ends the
// program as it does without a supervisor. As PID 1 it also waits for the
// orphans that fall to it.
//
// The worker, Attach, beats: it tells whenever an answer came through its whole
// serving path. A worker whose supervisor is gone is told to stop, since whoever
// started the supervisor takes the program for ended and may start it again.
//
// # Silence
//
// A silent worker is taken for hung in two stages. After the time at which the
// kernel sends new look-ups elsewhere, those that wait for the worker's answer
// are freed (Config.Free): nothing is lost if the worker wakes up again. After
// Config.Hung it is killed, waited for, and only then replaced: two never share
// a port.
//
// Silence is counted while the supervisor itself runs: a machine that was
// suspended, and both processes with it, is not a hung worker.
package supervise
