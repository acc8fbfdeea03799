// Package server is a packet's journey: from a datagram or a TCP frame to the
// reply that answers it.
//
// A query is parsed in place (query.go) and looked up in the zone's cache; a
// hit is copied, patched and sent with its batch (hit.go, reply.go). A miss
// gets a goroutine and walks through resolve.go: join the flight, ask the
// zone's sources, store, reply. There is no handler chain.
//
// Listeners outlive configurations: Apply opens what is new, swaps the zone
// tables and closes what is gone, so that a reload loses no query.
package server
