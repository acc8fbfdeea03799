package main

import (
	"errors"
	"flag"
	"net/netip"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// setRedirect declares the flags of redirection that differ from node to node. All
// other settings are in the Corefile's redirect directive.
func (f *flags) setRedirect(fs *flag.FlagSet) {
	r := &f.Redirect
	fs.StringVar(&r.Kubepods, "kubepods", "", "cgroup v2 `directory` of all pods (default: nodens finds it)")
	fs.StringVar(&r.PinDir, "redirect-pin-dir", bpf.DefaultPinDir, "keep programs and maps in this `directory` of a BPF file system")
	fs.StringVar(&r.PodLogs, "pod-logs", redirect.DefaultPodLogs, "the kubelet's `directory` of pods' logs, in which nodens finds the pods of the option opt_out")
	fs.Func("node-ip", "`addresses` of the node, comma-separated, at most one of each family (default $NODE_IP, $HOST_IP, or the source address of the default route)", func(s string) (err error) {
		if r.NodeIPs, err = config.ParseHostAddrs(s); err == nil && tooMany(r.NodeIPs) {
			err = errors.New("want at most one address of each family")
		}
		return err
	})
}

// tooMany reports whether two addresses are of one family.
func tooMany(addrs []netip.Addr) bool {
	return len(addrs) > 2 || len(addrs) == 2 && addrs[0].Is4() == addrs[1].Is4()
}
