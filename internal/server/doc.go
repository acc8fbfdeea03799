// Package server takes a query from a datagram or a TCP frame to its reply.
//
// A reader parses the query in place (query.go) and looks it up in the zone's cache.
// On a hit it copies the cached answer, patches it and sends it with its batch
// (reply.go). On a miss it queues the query behind the one in flight for the
// same question, or starts an exchange. An exchange queries the zone's sources,
// stores the answer and replies to all clients that wait for it (resolve.go). There
// is no handler chain.
//
// Listeners outlive configurations: Apply opens new addresses, swaps the zone tables
// and closes removed addresses. A reload loses no query.
package server
