package main

import (
	"errors"
	"flag"
	"strings"

	"github.com/nodens-dns/nodens/internal/cmdline"
	"github.com/nodens-dns/nodens/internal/kube"
)

// setCluster declares the flags for the API server.
func (f *flags) setCluster(fs *flag.FlagSet) {
	c := &f.Cluster
	fs.Func("endpoints-of", "`Service` of the cluster DNS, NAMESPACE/NAME. With a service account, nodens learns its endpoints from the API server, for redirection's fallbacks and for a forward with kubernetes_endpoints (default kube-system/kube-dns)", func(s string) error {
		namespace, service, _ := strings.Cut(s, "/")
		if !isObjectName(namespace) || !isObjectName(service) {
			return errors.New("want NAMESPACE/NAME")
		}
		c.Namespace, c.Service = namespace, service
		return nil
	})
	fs.StringVar(&c.Zone, "zone", "", "the node's topology.kubernetes.io/`zone`; nodens prefers endpoints in it (default $NODE_ZONE)")
	fs.StringVar(&c.Account, "service-account", kube.AccountDir, "`directory` of the service account's token and ca.crt")
}

// isObjectName reports whether s has the form of a DNS name, which Kubernetes
// requires of names that become part of a path.
func isObjectName(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, ".") != ""
}

// setLimits declares the flags for which clients get answers, and for the limits per
// client.
func (f *flags) setLimits(fs *flag.FlagSet) {
	l := &f.Limits
	fs.Func("clients", "`which` clients get answers on addresses other than those of -localip: inside (clients that a route other than the default route leads to) or all (default inside)", func(s string) error {
		if s != "inside" && s != "all" {
			return errors.New("want inside or all")
		}
		l.Everybody = s == "all"
		return nil
	})
	for _, f := range []struct {
		name, usage string
		to          *int
	}{
		{"max-misses", "resolve at most `n` queries at once; more get SERVFAIL (default by the memory limit, at most 16384)", &l.Misses},
		{"max-misses-per-client", "resolve at most `n` queries of one client at once; more get SERVFAIL (default an eighth of -max-misses, or 512 if that is more and not above a quarter)", &l.MissesPerClient},
		{"max-tcp-connections", "keep at most `n` TCP connections on one address; a new one replaces an idle one (default by the memory limit and the limit of open files, at most 1024)", &l.TCP},
		{"max-tcp-connections-per-client", "keep at most `n` TCP connections of one client on one address (default half of -max-tcp-connections)", &l.TCPPerClient},
	} {
		fs.Func(f.name, f.usage, func(s string) (err error) {
			*f.to, err = cmdline.Count(s)
			return err
		})
	}
}
