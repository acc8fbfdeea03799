// Package cache keeps packed DNS answers and their age, and coalesces equal
// misses.
//
// A Store owns one byte budget. Each zone of the configuration opens a Cache in
// it under an id; the entries belong to the id, so a reload that opens the same
// id again finds them warm. An Entry is a packed message without OPT, whose
// TTL fields can be aged on a copy without parsing it. A Flight runs one piece
// of work per key for any number of waiters.
//
// Time is only ever a difference of monotonic readings: a step of the wall
// clock changes nothing.
package cache
