// Package cache stores packed DNS answers and their age.
//
// A Store owns one byte budget. Each zone of the configuration opens a Cache in
// it under an id. The entries belong to the id: a reload that opens the same id
// finds them warm. An Entry is a packed message without OPT; the TTL fields of a
// copy can be aged without parsing it.
//
// All times are differences of monotonic clock readings, so a step of the wall
// clock changes nothing.
package cache
