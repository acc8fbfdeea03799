// Package kill ends, stops and replaces the daemon under the load of real
// resolvers whose sockets are redirected, and wants no look-up to fail.
package kill
