// Package upstream answers one question: from the servers that a forward names
// (Pool), from a hosts file (Hosts) or from a fixed zone (Static).
//
// All three have the method
//
//	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
//
// q holds one question, the RD, CD and AD bits, and perhaps an OPT record. The query
// to the server has the DO bit of that record and its options of type EDNS0_LOCAL.
// Nothing else of q is used, and q is neither kept nor modified. The answer belongs
// to the caller. It repeats the question in the spelling of q and has no OPT record.
// An error wraps ErrNotMine if the caller must query another source, or is an
// *Error.
//
// A Pool sends at most a few queries for one question. An attempt is the state of
// one exchange. It holds no goroutine. Its events are a reply or an error from the
// reader of a port (UDP) or stream (TCP, TLS), its timer, and cancel. Ports and
// streams hold the queries that wait for a reply, by ID.
package upstream
