package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodens-dns/nodens/internal/kube"
)

// setCluster declares what to ask the API server for, and as whom.
func (f *flags) setCluster(fs *flag.FlagSet) {
	c := &f.Cluster
	fs.Func("endpoints-of", "the cluster DNS's `Service`, NAMESPACE/NAME: redirection's fallbacks, and the upstreams of a forward with kubernetes_endpoints, are its endpoints, learnt from the API server where there is a service account (default kube-system/kube-dns)", func(s string) error {
		namespace, service, _ := strings.Cut(s, "/")
		if !isObjectName(namespace) || !isObjectName(service) {
			return errors.New("want NAMESPACE/NAME")
		}
		c.Namespace, c.Service = namespace, service
		return nil
	})
	fs.StringVar(&c.Zone, "zone", "", "the node's topology.kubernetes.io/`zone`, whose endpoints are preferred (default $NODE_ZONE)")
	fs.StringVar(&c.Account, "service-account", kube.AccountDir, "`directory` of the service account's token and ca.crt")
}

// isObjectName holds s to the form of a DNS label or name, as Kubernetes wants
// it for what becomes part of a path.
func isObjectName(s string) bool {
	return s != "" && len(s) <= 253 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-.") == "" && strings.Trim(s, ".") != ""
}

// setLimits declares who is answered, and what one client may use.
func (f *flags) setLimits(fs *flag.FlagSet) {
	l := &f.Limits
	fs.Func("clients", "`who` is answered on addresses that are not those of -localip: inside, which is all to whom a route other than the default one leads, or all (default inside)", func(s string) error {
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
		{"max-misses", "resolve at most `n` queries at once; more get SERVFAIL (default 16384)", &l.Misses},
		{"max-misses-per-client", "resolve at most `n` queries of one client at once; more get SERVFAIL (default an eighth of -max-misses)", &l.MissesPerClient},
		{"max-tcp-connections", "keep at most `n` TCP connections on one address; more are closed (default 1024)", &l.TCP},
		{"max-tcp-connections-per-client", "keep at most `n` TCP connections of one client there (default 512)", &l.TCPPerClient},
	} {
		fs.Func(f.name, f.usage, func(s string) (err error) {
			*f.to, err = parseCount(s)
			return err
		})
	}
}

// parseCount reads a limit, which is at least 1.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 20)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("want a number from 1 to %d", 1<<20-1)
	}
	return int(n), nil
}
