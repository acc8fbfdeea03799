package main

import (
	"errors"
	"flag"
	"net/netip"
	"strings"

	"github.com/nodens-dns/nodens/bpf"
	"github.com/nodens-dns/nodens/internal/config"
	"github.com/nodens-dns/nodens/internal/redirect"
)

// setRedirect declares the flags, with the meanings of the redirect directive's
// options.
func (f *flags) setRedirect(fs *flag.FlagSet) {
	r := &f.Redirect
	fs.Func("redirect", "redirect pods' sockets: `mode` off, auto or on; the Corefile's redirect directive wins over this and the flags below (default off)", func(s string) (err error) {
		r.Mode, err = config.ParseRedirectMode(s)
		return err
	})
	fs.Func("redirect-target", "redirect them to these `addresses`, comma-separated, ADDRESS, ADDRESS:PORT or :PORT; a second service has the next port (default the node's address, port 20053)", func(s string) (err error) {
		if r.Targets, err = eachOf(s, config.ParseRedirectTarget); err == nil {
			err = config.CheckRedirectTargets(r.Targets)
		}
		return err
	})
	fs.Func("redirect-service", "`addresses` that are redirected, comma-separated (default those of -localip)", func(s string) (err error) {
		r.Services, err = eachOf(s, config.ParseRedirectService)
		return err
	})
	fs.Func("redirect-fallback", "`addresses` that pods ask while nodens does not answer, comma-separated (default learnt, else the upstreams of the cluster domain)", func(s string) (err error) {
		r.Fallbacks, err = eachOf(s, config.ParseRedirectFallback)
		return err
	})
	fs.Func("redirect-opt-out", "`pods` that are left alone, comma-separated, NAMESPACE or NAMESPACE/POD", func(s string) (err error) {
		r.OptOut, err = eachOf(s, config.ParsePodName)
		return err
	})
	fs.Func("redirect-uplink", "`interfaces` from which nobody may ask the target, comma-separated (default those that lead to other hosts)", func(s string) (err error) {
		r.Uplinks, err = eachOf(s, func(s string) (string, error) { return s, nil })
		return err
	})
	fs.Func("redirect-heartbeat", "`duration` without an answer to nodens itself after which pods ask the fallback (default 400ms)", func(s string) (err error) {
		r.Heartbeat, err = config.ParseRedirectHeartbeat(s)
		return err
	})
	f.setRedirectPlaces(fs)
}

// setRedirectPlaces declares where things are.
func (f *flags) setRedirectPlaces(fs *flag.FlagSet) {
	r := &f.Redirect
	fs.StringVar(&r.Kubepods, "kubepods", "", "cgroup v2 `directory` of all pods (default found)")
	fs.StringVar(&r.PinDir, "redirect-pin-dir", bpf.DefaultPinDir, "keep programs and maps in this `directory` of a BPF file system")
	fs.StringVar(&r.PodLogs, "pod-logs", redirect.DefaultPodLogs, "the kubelet's `directory` of pods' logs, which tells the pods of -redirect-opt-out")
	fs.Func("node-ip", "`addresses` of the node, comma-separated, at most one of each family (default $NODE_IP, $HOST_IP, or what the default route sends from)", func(s string) (err error) {
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

// eachOf parses a comma-separated list.
func eachOf[T any](list string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for s := range strings.SplitSeq(list, ",") {
		if s == "" {
			return nil, errors.New("an entry is empty; the list has commas and no spaces")
		}
		v, err := parse(s)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}
