// Package upstream answers one question: it asks the servers that a forward
// names (Pool), looks into a hosts file (Hosts) or into a fixed zone (Static).
//
// All three have the method
//
//	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
//
// q holds one question, the RD and CD bits, and an OPT record whose DO bit, if
// set, asks for DNSSEC records and whose options, if given as EDNS0_LOCAL, are
// passed on; nothing else of q is looked at, and q is neither kept nor modified. The answer belongs to the caller. It repeats the
// question exactly as asked and carries no OPT record. An error wraps
// ErrNotMine if another source has to be asked, or is an *Error.
package upstream
