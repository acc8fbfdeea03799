// Package kill kills, stops and replaces the daemon while real resolvers with
// redirected sockets send queries. No lookup may fail.
package kill
