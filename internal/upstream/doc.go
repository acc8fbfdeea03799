// Package upstream answers one question: it asks the servers that a forward
// names (Pool), looks into a hosts file (Hosts) or into a fixed zone (Static).
//
// All three have the method
//
//	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
//
// q holds one question, the RD, CD and AD bits, and an OPT record whose DO bit, if
// set, asks for DNSSEC records and whose options, if given as EDNS0_LOCAL, are
// passed on; nothing else of q is looked at, and q is neither kept nor modified.
// The answer belongs to the caller. It repeats the question exactly as asked and
// carries no OPT record. An error wraps ErrNotMine if another source has to be
// asked, or is an *Error.
//
// A Pool asks one question with at most a few queries. Each is a try: a query on
// its way over a port or a stream of its own. An attempt makes them one by one
// for as long as they are answered in time, on the caller's goroutine; what is
// late goes on in a race, beside those that follow it.
package upstream
