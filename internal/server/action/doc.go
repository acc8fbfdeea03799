// Package action has the directives that act on a query or its reply: acl,
// dns64, loadbalance, rewrite, and the sources template and whoami. It knows
// neither the server nor its cache: package action applies the actions in
// CoreDNS's order.
package action
